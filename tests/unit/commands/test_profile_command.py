"""``profile``: the steps of an experiment, their table, the trace, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL

from etesian import cli
from small_stores import write_store

PARTS = ["data_wait", "copy_to_device", "encoder", "processor", "decoder", "loss", "backward", "optimiser", "rest"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    return write_store(folder / "store.zarr", variables=("t", "forcing"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.setenv("ETESIAN_CACHE", str(store.parent / "cache"))
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(store: Path, *arguments: str) -> int:
    before = list(sys.argv)
    try:
        return cli.main(["profile", *SMALL, f"system.input.dataset={store}", *arguments])
    finally:
        sys.argv = before


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "profile.json").read_text())


def test_steps_are_timed_and_nothing_of_a_run_is_written(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More steps than the experiment's epochs hold."""
    assert profile(store, "--steps", "30", "diagnostics.benchmark_profiler.warmup=4") == 0
    said = capsys.readouterr().out
    (made,) = (folder / "outputs" / "profile").iterdir()
    assert list((folder / "outputs").iterdir()) == [made.parent]
    assert sorted(path.name for path in made.iterdir()) == ["config.yaml", "parts.csv", "profile.json", "steps.csv"]
    found = results(made)
    assert found["steps"] == 26
    assert found["untimed_steps"] == 4
    assert [part["name"] for part in found["parts"]] == PARTS
    assert all(part["mean_ms"] > 0 for part in found["parts"])
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1)
    assert found["samples_per_second"] == pytest.approx(found["samples_per_step"] * 1e3 / found["mean_ms"])
    assert found["device_peak_bytes"] is None
    assert len(found["processes"]) == 1
    with open(made / "steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(4, 30))
    for row in rows:
        total = sum(float(row[f"{part}_ms"]) for part in PARTS)
        assert total == pytest.approx(float(row["step_ms"]), rel=1e-3)
    assert "Time of a training step, 26 steps timed" in said
    assert re.search(r"^ backward +[\d.,]+ +[\d.,]+ +[\d.]+% ", said, re.MULTILINE)
    assert re.search(r"^bottleneck: (data|rest|optimiser|computing): ", said, re.MULTILINE)
    assert f"bottleneck: {found['bottleneck'][:40]}" in said
    assert f"profile: outputs/profile/{made.name}\n" in said
    assert max(len(line) for line in said.splitlines()) <= 100


def test_detailed(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--detailed", "--steps", "8", "diagnostics.benchmark_profiler.warmup=2", "--output", "there/it/is"]
    assert profile(store, *arguments, "diagnostics.benchmark_profiler.trace_steps=2") == 0
    made = folder / "there" / "it" / "is"
    assert "profile: there/it/is (trace.json.gz, operators.txt)" in capsys.readouterr().out
    assert not (folder / "outputs").exists()
    assert results(made)["steps"] == 3  # of 8: 2 warm up, 1 starts the tracer, 2 are traced
    with gzip.open(made / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    for name in ("data wait", "forward", "backward", "encoder", "processor", "processor.blocks.0", "decoder", "loss"):
        assert names.count(name) == 2, name
    table = (made / "operators.txt").read_text()
    assert "Self CPU" in table
    assert "aten::addmm" in table
    assert sorted(path.name for path in made.iterdir()) == [
        "config.yaml", "operators.txt", "parts.csv", "profile.json", "steps.csv", "trace.json.gz"]  # fmt: skip


def test_a_trace_without_warm_up(store: Path, folder: Path) -> None:
    assert profile(
        store, "--detailed", "--steps", "3", "diagnostics.benchmark_profiler={warmup: 0, trace_steps: 1}",
        "--output", "made",
    ) == 0  # fmt: skip
    assert results(folder / "made")["steps"] == 1
    assert (folder / "made" / "trace.json.gz").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], ["--steps is '0'", "a whole number from 1"]),
        (["--steps", "many"], ["--steps is 'many'", "a whole number from 1"]),
        (["--steps", "5"], ["no step is left to be timed: there are 5, the first 5 warm up", "at least 6 steps"]),
        (["--steps", "9", "--detailed"], ["the first 5 warm up, 4 are for the trace", "at least 10 steps"]),
        (["--stepps", "9"], ["'--stepps' is no option", "--steps"]),
        (["diagnostics.benchmark_profiler.mode=detailed"], ["the command chooses the mode", "--detailed"]),
        (["diagnostics.benchmark_profiler.trace_steps=2"],
         ["diagnostics.benchmark_profiler.trace_steps=2 does nothing with mode='simple'", "mode: detailed"]),
        (["--output", "file"], ["file is no folder", "--output"]),
        (["--output", "full"], ["the folder full is not empty", "--output"]),
        (["--output", "file/inside"], ["file is no folder", "--output"]),
        (["model.num_channels=15"], ["model.num_channels"]),
        (["training.max_stepps=3"], ["training.max_stepps", "max_steps"]),
        (["training.optimization.lr=1e30", "--steps", "20"], ["the training loss after step"]),
    ],
)  # fmt: skip
def test_what_is_refused(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    (folder / "file").write_text("")
    (folder / "full").mkdir()
    (folder / "full" / "notes").write_text("")
    assert profile(store, *arguments) == 2
    said = capsys.readouterr().err
    for word in words:
        assert word in said
    assert "Traceback" not in said
    assert sorted(path.name for path in folder.iterdir()) == ["file", "full"]  # nothing half-written


def test_only_the_named_modes_are_modes(store: Path, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "off.yaml").write_text("defaults: [train, _self_]\ndiagnostics: {benchmark_profiler: {mode: off}}\n")
    assert cli.main(["config", "validate", "--config-name", "off"]) == 2
    assert "YAML reads a bare off as false; write none" in capsys.readouterr().err
    (folder / "near.yaml").write_text("defaults: [train, _self_]\ndiagnostics: {benchmark_profiler: {mode: details}}\n")
    assert cli.main(["config", "validate", "--config-name", "near"]) == 2
    said = capsys.readouterr().err
    assert "diagnostics.benchmark_profiler.mode='details' is not allowed" in said
    assert "did you mean 'detailed'?" in said
