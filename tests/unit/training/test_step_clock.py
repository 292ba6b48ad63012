"""The parts of a step, told from what Lightning and the hooks say, on a clock that the test moves."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_model import make_model, make_settings
from torch import nn

from etesian.runtime.device import DeviceClock, Mark
from etesian.training.step_clock import GRAPH, MODEL, StepClock

FETCH = "[_TrainingEpochLoop].train_dataloader_next"
COPY = "[Strategy]DataParallel.batch_to_device"
STEP = "[LightningModule]ForecastModule.optimizer_step"
ZERO = "[LightningModule]ForecastModule.optimizer_zero_grad"
FORWARD = "[Strategy]SingleDeviceStrategy.training_step"
BACKWARD = "[Strategy]SingleDeviceStrategy.backward"
SAVE = "save_checkpoint"
OTHERS = [f"[Callback]Callback{number}.on_something" for number in range(50)]
"""About as many as Lightning tells of in a step, of no part."""


class HandClock:
    """A host whose seconds are counted by hand, and a device that is as many behind as it is told."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.now, self.behind = 0.0, 0.0

    def mark(self) -> Mark:
        return Mark(self.now, None)

    def has_passed(self, mark: Mark) -> bool:
        return mark.host <= self.now - self.behind

    def between(self, first: Mark, second: Mark) -> float:
        return 2 * (second.host - first.host)


class Run:
    """Says what Lightning says, and lets time pass."""

    def __init__(self, **options: Any) -> None:
        self.hand = HandClock()
        self.clock = StepClock(self.hand, options.pop("untimed", 0), **options)  # type: ignore[arg-type]

    def passes(self, seconds: float) -> None:
        self.hand.now += seconds

    def does(self, action: str, seconds: float = 0.0) -> None:
        with self.clock.profile(action):
            self.passes(seconds)

    def batch(self, *, steps: bool = True, forward: Any = None) -> None:
        self.does(FETCH, 1)
        self.does(COPY, 2)
        self.passes(3)
        if steps:
            with self.clock.profile(STEP):
                self.computes(forward)
                self.passes(32)
        else:
            self.computes(forward)
        self.does("[Callback]FiniteLosses.on_train_batch_end", 64)

    def computes(self, forward: Any) -> None:
        with self.clock.profile(FORWARD):
            self.passes(4)
            if forward is not None:
                forward()
        self.does(ZERO, 8)
        self.does(BACKWARD, 16)

    def times(self) -> list[dict[str, float]]:
        self.clock.finish()
        return [step.host_seconds for step in self.clock.steps]


WHOLE = {"data_wait": 1, "copy_to_device": 2, "backward": 16, "optimiser": 40, "rest": 71}


def test_every_second_belongs_to_one_part() -> None:
    run = Run()
    run.batch()
    run.batch()
    assert run.times() == [WHOLE, WHOLE]
    assert [step.number for step in run.clock.steps] == [0, 1]
    assert sum(WHOLE.values()) * 2 == run.hand.now
    assert run.clock.steps[0].seconds == {part: 2 * seconds for part, seconds in WHOLE.items()}  # the device's


def test_batches_are_added_up_until_the_optimiser_steps() -> None:
    run = Run()
    run.batch(steps=False)
    run.batch(steps=False)
    run.batch()
    (times,) = run.times()
    assert times == {"data_wait": 3, "copy_to_device": 6, "backward": 48, "optimiser": 56, "rest": 213}
    assert run.clock.steps[0].batches == 3


def test_validation_checkpoints_and_the_end_of_an_epoch_are_left_out() -> None:
    run = Run()
    run.does(COPY, 1000)  # of a validation before the training
    run.clock.start("run_training_epoch")
    run.batch()
    run.does("[LightningModule]ForecastModule.on_validation_model_zero_grad", 1000)
    run.does("[_EvaluationLoop].val_next", 1000)
    run.does(COPY, 1000)
    run.clock.stop("run_training_epoch")
    run.passes(1000)
    run.clock.start("run_training_epoch")
    run.does(FETCH, 1)
    run.does(SAVE, 1000)
    with run.clock.profile(STEP):
        run.does(SAVE, 1000)
        run.passes(2)
    run.clock.stop("run_training_epoch")
    run.passes(1000)
    assert run.times() == [WHOLE, {"data_wait": 1, "optimiser": 2, "rest": 0}]


def test_the_first_steps_are_left_out() -> None:
    run = Run(untimed=2)
    for _ in range(5):
        run.batch()
    run.times()
    assert [step.number for step in run.clock.steps] == [2, 3, 4]


def test_steps_are_read_when_the_device_has_done_them() -> None:
    run = Run()
    run.hand.behind = 1000
    for done in range(1, 4):
        run.batch()
        assert not run.clock.steps
        assert len(run.clock._waiting) == done - 1  # the last is open still
    run.hand.behind = 0
    run.batch()
    assert len(run.clock.steps) == 3
    assert not run.clock._waiting


@pytest.mark.parametrize(("behind", "expected"), [(0, True), (31, True), (100, False)])
def test_a_device_that_waits_for_calls(behind: float, expected: bool) -> None:
    """The backward pass is over 32 seconds before the optimiser has been called."""
    run = Run()
    run.hand.behind = behind
    run.batch()
    run.hand.behind = 0
    run.times()
    assert run.clock.steps[0].host_bound is expected


def test_after_step_is_called_outside_of_what_is_timed() -> None:
    run, seen = Run(), []

    def after(done: int) -> None:
        seen.append(done)
        run.passes(1000)

    run.clock.after_step = after
    run.batch()
    run.batch()
    assert run.times() == [WHOLE, WHOLE]
    assert seen == [1, 2]


def test_a_step_of_marks_takes_little() -> None:
    """The fastest of many, which other processes disturb least."""
    clock, seconds = StepClock(DeviceClock(torch.device("cpu")), 0), []
    model = nn.ModuleDict({name: nn.Identity() for name in ("encoder", "processor", "decoder")})
    loss = nn.Identity()
    clock.watch(model, loss, None)
    for _ in range(300):
        began = time.perf_counter()
        for action in (FETCH, COPY, *OTHERS[:25]):
            with clock.profile(action):
                pass
        with clock.profile(STEP):
            with clock.profile(FORWARD):
                for module in (*model.values(), loss):
                    module(1)
            for action in (ZERO, BACKWARD, *OTHERS[25:]):
                with clock.profile(action):
                    pass
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 5e-4
    assert len(clock.steps) == 299


class Takes(nn.Module):
    """Takes so many seconds."""

    def __init__(self, run: Run, seconds: float) -> None:
        super().__init__()
        self.run, self.seconds = run, seconds

    def forward(self) -> None:
        self.run.passes(self.seconds)


def watched(run: Run, names: tuple[str, ...] = ("encoder", "processor", "decoder")) -> tuple[nn.Module, nn.Module]:
    model = nn.Module()
    for seconds, name in zip((100, 200, 400), names, strict=True):
        model.add_module(name, Takes(run, seconds))
    loss = Takes(run, 800)
    run.clock.watch(model, loss, None)
    return model, loss


def test_components_are_parts() -> None:
    run = Run()
    model, loss = watched(run)

    def forward() -> None:
        for _ in range(2):  # a rollout of two steps
            model.encoder()
            model.processor()
            run.passes(5)
            model.decoder()
            loss()

    run.batch(forward=forward)
    (times,) = run.times()
    assert times == {**WHOLE, "encoder": 200, "processor": 400, "decoder": 800, "loss": 1600, "rest": 81}
    assert list(times)[:5] == ["data_wait", "copy_to_device", "encoder", "processor", "decoder"]
    run.clock.unwatch()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in [*model.children(), loss])


def test_what_the_backward_pass_computes_again_is_of_the_backward_pass() -> None:
    run = Run()
    model, _ = watched(run)
    run.does(FETCH)
    with run.clock.profile(STEP):
        with run.clock.profile(FORWARD):
            model.encoder()
        with run.clock.profile(BACKWARD):
            model.encoder()
            run.passes(1)
    assert run.times() == [{"data_wait": 0, "encoder": 100, "backward": 101, "optimiser": 0, "rest": 0}]


def test_modules_called_in_a_validation_are_not_timed() -> None:
    run = Run()
    model, _ = watched(run)
    run.batch()
    run.does("[Callback]RunProgress.on_validation_start")
    model.encoder()
    assert run.times() == [WHOLE]


def test_a_graph_of_the_whole_step_is_one_part() -> None:
    run = Run(one_graph=True)
    model, loss = watched(run)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in [*model.children(), loss])
    run.batch(forward=model.encoder)
    (times,) = run.times()
    assert times == {"data_wait": 1, "copy_to_device": 2, GRAPH: 120, "optimiser": 40, "rest": 67}
    assert not run.clock.steps[0].host_bound


def test_a_model_compiled_as_one_is_one_part() -> None:
    """A hook inside would be compiled with it, or break its graph."""
    model, run = make_model(make_settings()), Run()
    compilation = SimpleNamespace(entries=[SimpleNamespace(names=("",))])
    run.clock.watch(model, nn.Identity(), compilation)  # type: ignore[arg-type]
    assert model._forward_hooks
    assert not any(module._forward_hooks for name, module in model.named_modules() if name)
    run.batch(forward=lambda: model(torch.zeros(1, 2, 1, 14, 3)))
    (times,) = run.times()
    assert MODEL in times
    assert "encoder" not in times
