"""On a GPU: the comparison of kernels and of whole steps gives sane numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from etesian import cli
from etesian.runtime.device import DeviceClock

pytestmark = pytest.mark.gpu

ON_A_GPU = ["system.hardware.accelerator=cuda", "training.precision=bf16-mixed"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_norms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rows", "4096", "--channels", "1024", "--slots", "LayerNorm", *ON_A_GPU, "--output", "results.json"]
    assert cli.main(["kernels", "bench", *arguments, "--repeats", "3", "--min-time", "0.02"]) == 0
    said = capsys.readouterr().out
    assert torch.cuda.get_device_name(0) in said
    assert re.search(r"\* torch\.nn\.LayerNorm eps=1e-05 +[\d.]+ +[\d.]+h? +\d+% +[\d.]+ +[\d.]+ +[\d.]+", said)
    assert max(len(line) for line in said.splitlines()) <= 100
    results = json.loads((folder / "results.json").read_text())
    assert 1e11 < results["measured_on_the_device"]["copy_bytes_per_second"] < 2e13
    (slot,) = results["slots"]
    assert slot["inputs"] == {"input": "4,096 x 1,024 bfloat16"}
    timed = [kernel for kernel in slot["kernels"] if kernel["forward_backward_ms"]]
    assert {("torch.nn.LayerNorm", False), ("torch.nn.LayerNorm", True), ("torch.nn.RMSNorm", False)} <= {
        (kernel["target"], kernel["compiled"]) for kernel in timed
    }
    for kernel in timed:
        times = kernel["forward_backward_ms"]
        assert slot["floor_ms"]["forward_backward"] < 1.5 * times["device"] < 1.5e2
        assert times["device"] < 1.2 * times["median"]
        assert kernel["forward_ms"]["median"] < 1.2 * times["median"]
        assert 0 < kernel["relative_error"]["output"] < 3e-2
        assert 4096 * 1024 < kernel["peak_bytes"] < 40 * 4096 * 1024
    assert not any(kernel["wrong"] for kernel in slot["kernels"])


@pytest.mark.parametrize("slot", ["Linear", "Activation", "QueryNorm", "MLP", "GraphAttention", "Attention"])
def test_other_slots(slot: str, folder: Path) -> None:
    quick = ["--repeats", "2", "--min-time", "0.005", "--no-compiled", "--output", "results.json"]
    arguments = ["--rows", "2048", "--channels", "256", "--slots", slot, *ON_A_GPU]
    assert cli.main(["kernels", "bench", *arguments, *quick]) == 0
    (result,) = json.loads((folder / "results.json").read_text())["slots"]
    assert any(kernel["forward_backward_ms"] for kernel in result["kernels"])
    for kernel in result["kernels"]:
        assert not kernel["wrong"], kernel["reason"]


@pytest.mark.parametrize("take_turns", [False, True])
def test_whole_steps(take_turns: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if take_turns:
        monkeypatch.setattr("etesian.training.step_times.ROOM", 0.0)
    arguments = ["--config-name", "debug", "training.deterministic=false", *ON_A_GPU, "--output", "steps.json"]
    presets = ["--presets", "torch,rmsnorm,compiled_rmsnorm"]
    assert cli.main(["kernels", "bench", *arguments, "--end-to-end", *presets, "--repeats", "2"]) == 0
    steps = json.loads((folder / "steps.json").read_text())["end_to_end"]
    assert ("take turns" in steps["memory"]) == take_turns
    found = {entry["preset"]: entry for entry in steps["presets"]}
    assert found["torch"]["peak_bytes"] > 0
    assert found["compiled_rmsnorm"]["graphs"] > 0
    assert found["compiled_rmsnorm"]["first_loss"] == pytest.approx(found["rmsnorm"]["first_loss"], rel=1e-2)
    for entry in found.values():
        assert 0 < entry["step_ms"]["min"] <= entry["step_ms"]["median"] < 1e4


def test_the_clock() -> None:
    clock = DeviceClock(torch.device("cuda:0"))
    x = torch.randn(2**26, device="cuda")
    call, host = clock.seconds(lambda _: torch.sin(x), 20)
    alone = clock.queued_seconds(lambda _: torch.sin(x), 8, host)
    assert alone is not None
    assert 0.5 * call < alone < 1.5 * call
    assert host < call
    peak = clock.peak_bytes(lambda: torch.sin(x).cos())
    assert peak is not None
    assert 2 * x.nbytes <= peak < 3 * x.nbytes
    assert clock.held_bytes() >= x.nbytes
    assert clock.free_bytes() > 0
    assert clock.cache_bytes > 2**20
