"""Who asks a run to stop, and when it does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etesian.training.stop_request import REASONS, STOPPED, Stopped, StopRequest
from etesian.training.stopping import StopAfterStep


class Trainer(SimpleNamespace):
    """Of Lightning's, what the callback asks."""

    def __init__(self, **attributes: Any) -> None:
        self.saved: list[Path] = []
        self._logger_connector = SimpleNamespace(update_train_step_metrics=lambda: None)
        strategy = SimpleNamespace(root_device=torch.device("cpu"), reduce=lambda tensor, reduce_op: self.heard(tensor))
        defaults = {"global_step": 0, "world_size": 1, "is_last_batch": False, "max_steps": 100, "strategy": strategy}
        super().__init__(**{**defaults, "heard": lambda tensor: tensor, **attributes})

    def save_checkpoint(self, path: Path) -> None:
        self.saved.append(path)

    def step(self, callback: StopAfterStep, **attributes: Any) -> None:
        self.global_step += 1
        vars(self).update(attributes)
        callback.on_train_batch_end(self, None, None, None, 0)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, STOPPED), (signal.SIGTERM, 143)])
def test_outside_of_training_a_signal_ends_the_run_at_once(number: int, status: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped, StopRequest().listening():
        os.kill(os.getpid(), number)
    assert (stopped.value.code, stopped.value.reason) == (status, signal.Signals(number).name)
    assert signal.getsignal(number) is before


def test_in_training_it_waits_for_the_step(tmp_path: Path) -> None:
    request = StopRequest()
    callback, trainer = StopAfterStep(request, tmp_path, 10), Trainer()
    with request.listening():
        callback.on_train_start(trainer, None)
        trainer.step(callback)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert trainer.saved == []
        with pytest.raises(Stopped) as stopped:
            trainer.step(callback)
    assert trainer.saved == [tmp_path / "last.ckpt"]
    assert stopped.value.reason == "SIGUSR1"


def test_a_batch_that_is_no_step_of_the_optimiser_is_gone_on_from(tmp_path: Path) -> None:
    request = StopRequest()
    callback, trainer = StopAfterStep(request, tmp_path, 10), Trainer(global_step=3)
    with request.listening():
        callback.on_train_start(trainer, None)
        request.asked = "SIGTERM"
        callback.on_train_batch_end(trainer, None, None, None, 0)
        assert trainer.saved == []
        with pytest.raises(Stopped):
            trainer.step(callback)


def test_the_last_step_of_an_epoch_is_followed_by_its_validation(tmp_path: Path) -> None:
    request = StopRequest(max_time=0.0)
    callback, trainer = StopAfterStep(request, tmp_path, 10), Trainer()
    trainer.step(callback, is_last_batch=True)
    assert trainer.saved == []
    with pytest.raises(Stopped) as stopped:
        trainer.step(callback, is_last_batch=False)
    assert (stopped.value.code, stopped.value.reason) == (STOPPED, "training.max_time")


def test_a_run_that_is_at_its_end_ends(tmp_path: Path) -> None:
    callback, trainer = StopAfterStep(StopRequest(max_time=0.0), tmp_path, 10), Trainer(global_step=4, max_steps=5)
    trainer.step(callback)
    assert trainer.saved == []


def test_several_processes_stop_after_the_same_step(tmp_path: Path) -> None:
    asked: list[int] = []

    def heard(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(int(tensor))
        return torch.tensor(1 + REASONS.index("SIGTERM"))

    callback, trainer = StopAfterStep(StopRequest(), tmp_path, 3), Trainer(world_size=2, heard=heard)
    trainer.step(callback)
    trainer.step(callback)
    assert asked == []
    with pytest.raises(Stopped) as stopped:
        trainer.step(callback)
    assert asked == [0]
    assert stopped.value.code == 143


def test_they_agree_even_if_only_last_steps_of_epochs_are_looked_at(tmp_path: Path) -> None:
    callback = StopAfterStep(StopRequest(max_time=0.0), tmp_path, 5)
    trainer = Trainer(world_size=2, global_step=4)
    trainer.step(callback, is_last_batch=True)
    with pytest.raises(Stopped):
        trainer.step(callback, is_last_batch=False)


def test_without_a_limit_nothing_stops(tmp_path: Path) -> None:
    callback, trainer = StopAfterStep(StopRequest(), tmp_path, 1), Trainer()
    for _ in range(5):
        trainer.step(callback)
    assert trainer.saved == []


@pytest.mark.parametrize("reason", REASONS)
def test_a_signal_in_the_last_step_ends_what_comes_after(tmp_path: Path, reason: str) -> None:
    request = StopRequest()
    callback, trainer = StopAfterStep(request, tmp_path, 10), Trainer(max_steps=1)
    with request.listening():
        callback.on_train_start(trainer, None)
        request.asked = reason
        trainer.step(callback)
        assert callback.after_training is None
        callback.on_train_end(trainer, None)
    assert callback.after_training == (None if reason == "training.max_time" else reason)


def test_a_second_signal_ends_what_the_first_did_not(tmp_path: Path) -> None:
    request = StopRequest()
    callback, trainer = StopAfterStep(request, tmp_path, 10), Trainer()
    with request.listening():
        callback.on_train_start(trainer, None)
        os.kill(os.getpid(), signal.SIGTERM)
        callback.on_train_end(trainer, None)
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # tidying up goes on
