"""On a GPU: the parts of a step add up to the wall clock, cost little, and find what holds a step up."""

from __future__ import annotations

import gzip
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from profiler_cost import cost

from etesian import cli
from etesian.runtime.device import DeviceClock
from etesian.training.step_clock import StepClock

pytestmark = pytest.mark.gpu

TINY = ["--config-name", "debug", "system=gpu", "system.input.dataset=embedded:ncep-monthly-5deg"]
LARGE = [*TINY, "model.num_channels=512", "model.processor.num_layers=8", "training.precision=bf16-mixed",
         "dataloader.batch_size.training=8"]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def profile(folder: Path, *arguments: str) -> dict[str, Any]:
    assert cli.main(["profile", *arguments, "--output", "made"]) == 0
    return json.loads((folder / "made" / "profile.json").read_text())


def test_a_step_and_its_memory(folder: Path) -> None:
    found = profile(folder, *LARGE, "--steps", "40")
    assert found["device"] == torch.cuda.get_device_name(0)
    parts = {part["name"]: part for part in found["parts"]}
    assert set(parts) == {"data_wait", "copy_to_device", "encoder", "processor", "decoder", "loss", "backward",
                          "optimiser", "rest"}  # fmt: skip
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1)
    assert parts["backward"]["mean_ms"] > parts["processor"]["mean_ms"] > 0
    # over many steps, device and host take the same time, whoever waits for whom
    host = sum(part["host_mean_ms"] for part in found["parts"])
    assert found["mean_ms"] == pytest.approx(host, rel=0.2)
    assert 1e8 < found["device_peak_bytes"] <= found["device_kept_bytes"] < 1e11
    assert 0 <= found["host_bound"] <= 1


def test_detailed(folder: Path) -> None:
    profile(folder, *TINY, "--steps", "20", "--detailed")
    with gzip.open(folder / "made" / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    assert {"encoder", "processor", "processor.blocks.0", "decoder", "backward", "data wait"} <= names
    assert "Self CUDA" in (folder / "made" / "operators.txt").read_text()
    snapshot = pickle.loads((folder / "made" / "memory.pickle").read_bytes())
    assert sum(len(trace) for trace in snapshot["device_traces"]) > 100


def test_the_device_is_not_waited_for() -> None:
    """Marks around work that the device has not done are made at once, and read when it has."""
    device = torch.device("cuda")
    clock = StepClock(DeviceClock(device), 0)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    began = time.perf_counter()
    with clock.profile("x.train_dataloader_next"):
        pass
    with clock.profile("x.optimizer_step"), clock.profile("x.backward"):
        torch.cuda._sleep(1_000_000_000)  # about half a second
    clock._end_batch()
    assert time.perf_counter() - began < 0.2
    assert not clock.steps
    clock.finish()
    (step,) = clock.steps
    assert step.seconds["backward"] > 0.2
    assert step.host_seconds["backward"] < 0.2
    assert not step.host_bound


def test_a_slow_loader_is_what_the_device_waits_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etesian.data.windows import WindowDataset

    read = WindowDataset.__getitems__

    def slowly(self: WindowDataset, indices: Any) -> Any:
        time.sleep(0.1)
        return read(self, indices)

    monkeypatch.setattr(WindowDataset, "__getitems__", slowly)
    found = profile(folder, *TINY, "--steps", "20", "dataloader.num_workers.training=0")
    (data,) = [part for part in found["parts"] if part["name"] == "data_wait"]
    assert data["share"] > 0.4
    assert found["bottleneck"].startswith("data: the device waited")


def test_it_costs_less_than_two_percent() -> None:
    """Of a step that the device has to work for, and of the host's wall clock."""
    found = []
    for _ in range(3):
        plain, profiled = cost(LARGE, steps=240, block=10)
        found.append(profiled / plain)
    assert sorted(found)[1] < 1.02, found
