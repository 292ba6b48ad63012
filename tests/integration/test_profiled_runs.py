"""Runs with ``diagnostics.benchmark_profiler``: the same training, its times beside, at little cost."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from profiler_cost import cost
from runs import SMALL, assert_same_run, curve, losses, rows, run, train

from small_stores import write_store

PARTS = ["data_wait", "copy_to_device", "encoder", "processor", "decoder", "loss", "backward", "optimiser", "rest"]
MODE = "diagnostics.benchmark_profiler.mode="


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("profiled") / "store.zarr", variables=("t", "forcing"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.setenv("ETESIAN_CACHE", str(store.parent / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profiled(folder: Path, store: Path, *options: str, name: str = "profiled") -> dict[str, Any]:
    assert train(*SMALL, f"system.input.dataset={store}", f"training.run_id={name}", *options) == 0
    return json.loads((folder / "outputs" / name / "profiler" / "profile.json").read_text())


def names(found: dict[str, Any]) -> list[str]:
    return [part["name"] for part in found["parts"]]


def test_a_profiled_run_is_the_same_run(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(folder, store, MODE + "simple")
    said = capsys.readouterr().out
    assert train(*SMALL, f"system.input.dataset={store}", "training.run_id=plain") == 0
    plain, measured = folder / "outputs" / "plain", folder / "outputs" / "profiled"
    assert_same_run(plain, measured)
    assert not (plain / "profiler").exists()
    assert sorted(path.name for path in (measured / "profiler").iterdir()) == ["parts.csv", "profile.json", "steps.csv"]
    assert names(found) == PARTS
    assert found["steps"] == len(losses(measured)) - found["untimed_steps"]
    assert "Time of a training step" in said
    assert said.index("bottleneck: ") < said.index("RMSE over the test period")
    last = rows(measured)[-1]
    assert float(last["profiler/step_ms"]) == pytest.approx(found["mean_ms"])
    assert float(last["profiler/samples_per_second"]) == pytest.approx(found["samples_per_second"])
    assert last["val_loss"]  # the row of the last step
    assert curve(measured) == curve(plain)


def test_accumulated_batches_rollout_and_checkpointing(store: Path, folder: Path) -> None:
    options = [
        "training.accum_grad_batches=2", "task.rollout={start: 2, epoch_increment: 0, maximum: 2}",
        "model.processor.gradient_checkpointing=true", "diagnostics.benchmark_profiler.warmup=1",
    ]  # fmt: skip
    found = profiled(folder, store, MODE + "simple", *options)
    assert names(found) == PARTS
    assert found["samples_per_step"] > 1
    assert found["steps"] == len(losses(folder / "outputs" / "profiled")) - 1


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["blocks", "model"])
def test_compiled_models(store: Path, folder: Path, compiled: str) -> None:
    """A model that is compiled as one stays one graph, and is one part."""
    entry = {"blocks": "etesian.model.block.Block", "model": "etesian.model.base.Model"}[compiled]
    options = f"[{{module: {entry}, options: {{backend: eager, fullgraph: true}}}}]"
    found = profiled(folder, store, MODE + "detailed", f"model.compile={options}")
    inside = ["encoder", "processor", "decoder"] if compiled == "blocks" else ["model"]
    assert names(found) == [*PARTS[:2], *inside, *PARTS[5:]]
    assert (folder / "outputs" / "profiled" / "profiler" / "trace.json.gz").is_file()


def test_a_run_that_ends_before_the_first_timed_step(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, f"system.input.dataset={store}", MODE + "simple", "training.max_steps=5"]
    assert train(*arguments) == 2
    said = capsys.readouterr().err
    assert "no step is left to be timed: there are 5, the first 5 warm up" in said
    assert "a smaller diagnostics.benchmark_profiler.warmup" in said
    assert not (folder / "outputs").exists()


def test_a_resumed_run_without_a_timed_step_says_so(
    store: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = profiled(folder, store, MODE + "simple", "training.max_epochs=null", "training.max_steps=8")
    capsys.readouterr()
    assert (
        profiled(folder, store, MODE + "simple", "training.max_epochs=null", "training.max_steps=10") == found
    )  # the file of before stays
    said = capsys.readouterr().out
    assert "diagnostics.benchmark_profiler: no step was timed, the first 5 of a process are left out" in said
    assert "Time of a training step" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", [("profile", "--output", "made"), ("train",)], ids=["profile", "train"])
def test_two_processes(store: Path, folder: Path, words: tuple[str, ...]) -> None:
    two = ["system.hardware.num_gpus_per_node=2", "dataloader.batch_size={training: 1, validation: 2, test: 2}"]
    made = folder / ("made" if words[0] == "profile" else "outputs/two/profiler")
    options = [*SMALL, f"system.input.dataset={store}", *two]
    if words[0] == "train":
        options += [MODE + "simple", "training.run_id=two"]
    done = run(folder, store.parent / "cache", *words[1:], *options, name=words[0])
    found = json.loads((made / "profile.json").read_text())
    assert found["samples_per_step"] == 2
    assert len(found["processes"]) == 2
    assert all(len(process["parts"]) == len(PARTS) for process in found["processes"])
    assert done.stdout.count("Time of a training step") == 1
    assert re.search(r"2 processes: the above is the first; steps of [\d.]+ to [\d.]+ ms", done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_costs_less_than_two_percent(folder: Path) -> None:
    """Of a step of the smallest experiment there is; larger ones have as many parts."""
    found = []
    for _ in range(3):  # a busy machine disturbs a comparison by a few percent, in either direction
        plain, profiled_step = cost(["--config-name", "debug"], steps=300, block=1)
        found.append(profiled_step / plain)
    assert statistics.median(found) < 1.02, found
