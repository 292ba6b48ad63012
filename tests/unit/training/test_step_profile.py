"""Numbers over steps, and the sentence that says what holds them up."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.schema.config import Config
from etesian.training import bottleneck as module
from etesian.training.bottleneck import bottleneck
from etesian.training.step_clock import StepTimes
from etesian.training.step_profile import (
    StepProfile,
    parts_csv,
    peak_host_bytes,
    profile_table,
    steps_csv,
    summarise,
    throughput_line,
)


def step(number: int, *, batches: int = 1, host_bound: bool = False, **ms: float) -> StepTimes:
    seconds = {part: value / 1e3 for part, value in ms.items()}
    return StepTimes(number, batches, seconds, {part: value / 2 for part, value in seconds.items()}, host_bound)


STEPS = [step(5, data_wait=1.0, backward=6.0, rest=1.0), step(6, data_wait=4.0, backward=6.0), step(7, backward=12.0)]


def test_means_medians_and_shares() -> None:
    profile = summarise(STEPS, batch_size=4, peak=None)
    assert (profile.steps, profile.mean_ms, profile.median_ms) == (3, pytest.approx(10), pytest.approx(10))
    numbers = {part.name: (part.mean_ms, part.median_ms, part.share, part.host_mean_ms) for part in profile.parts}
    assert numbers["data_wait"] == pytest.approx((5 / 3, 1, 1 / 6, 5 / 6))
    assert numbers["backward"] == pytest.approx((8, 6, 0.8, 4))
    assert numbers["rest"] == pytest.approx((1 / 3, 0, 1 / 30, 1 / 6))
    assert sum(part.mean_ms for part in profile.parts) == pytest.approx(profile.mean_ms)
    assert profile.samples_per_second == pytest.approx(400)
    assert profile.steps_per_second == pytest.approx(100)
    assert profile.host_bound is profile.device_peak_bytes is None
    assert 1e7 < profile.host_peak_bytes <= peak_host_bytes() < 1e12
    assert json.loads(json.dumps(profile.to_json()))["parts"][0]["label"] == "data wait"
    assert profile.metrics()["profiler/backward_ms"] == pytest.approx(8)


def test_samples_of_accumulated_batches() -> None:
    profile = summarise([step(0, batches=3, rest=10.0), step(1, batches=1, rest=10.0)], batch_size=4, peak=None)
    assert profile.samples_per_step == 8
    assert profile.samples_per_second == pytest.approx(800)


def test_files_and_table() -> None:
    profile = summarise(STEPS, batch_size=4, peak=(3 * 10**9, 4 * 10**9))
    parts = list(csv.DictReader(io.StringIO(parts_csv(profile))))
    assert [row["part"] for row in parts] == ["data_wait", "backward", "rest", "step"]
    assert float(parts[1]["share"]) == pytest.approx(0.8)
    steps = list(csv.DictReader(io.StringIO(steps_csv(STEPS, profile))))
    assert [row["step"] for row in steps] == ["5", "6", "7"]
    assert steps[1] == {"step": "6", "data_wait_ms": "4", "backward_ms": "6", "rest_ms": "0", "step_ms": "10"}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(profile_table(profile))
    text = console.export_text()
    assert re.search("backward +8.000 +6.000 +80.0% +█{16} ", text)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert throughput_line(profile).startswith(
        "400 samples/s, 100 steps/s; peak memory 3.00 GB on the device (4.00 GB kept)"
    )


def of_debug(*overrides: str) -> Config:
    return check_tree(compose("debug", None, list(overrides)))


def said(config: Config, *, host_bound: bool = False, on_device: bool = True, **ms: float) -> str:
    return bottleneck(summarise([step(0, host_bound=host_bound, **ms)], 1, (1, 1) if on_device else None), config)


GPU = ("system=gpu",)
COMPUTING: dict[str, Any] = {"encoder": 10, "processor": 30, "decoder": 5, "loss": 1, "backward": 44}


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("overrides", "ms", "expected"),
    [
        (GPU, {"data_wait": 38, "backward": 62},
         "data: the device waited 38% of the time for the loader: raise dataloader.num_workers.training, which is 0, "
         "to 2"),
        (("dataloader.num_workers.training=4",), {"data_wait": 38, "backward": 62},
         "data: the processor waited 38% of the time for the loader: 4 workers for each process fill the 4 processor "
         "cores, so more of these, faster storage or a store with one date a chunk"),
        (("dataloader.num_workers.training=3",), {"data_wait": 11, "backward": 89},
         "data: the processor waited 11% of the time for the loader: raise dataloader.num_workers.training, which is "
         "3, to 4"),
        (GPU, {"copy_to_device": 20, "backward": 80},
         "copy: 20% of the time goes to copying batches to the device: fewer variables or a longer rollout, which "
         "copies less for each forecast"),
        ((*GPU, "dataloader.pin_memory=false"), {"copy_to_device": 20, "backward": 80},
         "copy: 20% of the time goes to copying batches to the device: dataloader.pin_memory=null"),
        ((), {"rest": 40, "backward": 60},
         "rest: 40% of the time goes to what surrounds the model (normalising, residual, logging, callbacks): a "
         "larger model or batch, or a larger diagnostics.log.interval, makes it small"),
        ((), {"optimiser": 40, "backward": 60},
         "optimiser: 40% of the time goes to clipping and updating the weights: larger batches for each step "
         "(dataloader.batch_size.training, training.accum_grad_batches) make it rarer"),
        ((*GPU, "training.precision=bf16-mixed"), {"host_bound": True, **COMPUTING},
         "calls: the device works off its kernels faster than the host calls them: fewer and larger ones "
         "(model/compile=blocks)"),
        ((*GPU, "training.precision=16-mixed"), {"host_bound": True, **COMPUTING},
         "computing: forward and backward pass take 100% of the time, the processor 67% of the forward pass: "
         "model/compile=blocks"),
        ((*GPU, "training.precision=32-true"), COMPUTING,
         "computing: forward and backward pass take 100% of the time, the processor 67% of the forward pass: "
         "training.precision=bf16-mixed"),
        (("model.processor.gradient_checkpointing=true",), COMPUTING,
         "computing: forward and backward pass take 100% of the time, the processor 67% of the forward pass: "
         "model.processor.gradient_checkpointing=none, where the memory suffices"),
        (("model/compile=blocks",), COMPUTING,
         "computing: forward and backward pass take 100% of the time, the processor 67% of the forward pass: "
         "anemoi-training kernels bench compares kernels"),
        ((), {"forward_and_backward": 90, "optimiser": 10},
         "computing: forward and backward pass take 90% of the time: model/compile=blocks"),
    ],
)  # fmt: skip
def test_what_holds_a_step_up(overrides: tuple[str, ...], ms: dict[str, Any], expected: str) -> None:
    assert said(of_debug(*overrides), **ms) == expected


def test_without_a_part_its_share_is_nothing() -> None:
    profile: StepProfile = summarise(STEPS, 1, None)
    assert profile.share("encoder") == 0
