"""The average of the weights: what is added up, exchanged for a validation, and kept in a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from etesian.errors import UserError
from etesian.schema.training import EMASettings
from etesian.training.averaging import TRAINED, AveragedWeights, check_averaging


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.register_buffer("index", torch.arange(3))


class Steps:
    """A trainer that is at some step."""

    def __init__(self, step: int = 0) -> None:
        self.global_step = step


def started(model: Model, decay: float = 0.75, start_step: int = 0, step: int = 0) -> tuple[AveragedWeights, Any]:
    trainer: Any = Steps(step)
    callback = AveragedWeights(EMASettings(decay=decay, start_step=start_step))
    callback.on_fit_start(trainer, model)
    callback.on_train_start(trainer, model)
    return callback, trainer


def advance(callback: AveragedWeights, trainer: Any, model: Model) -> None:
    with torch.no_grad():
        model.linear.weight.add_(1.0)
    trainer.global_step += 1
    callback.on_train_batch_end(trainer, model, None, None, 0)


def saved(callback: AveragedWeights, trainer: Any, model: Model) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"state_dict": model.state_dict()}
    callback.on_save_checkpoint(trainer, model, checkpoint)
    return copy.deepcopy(checkpoint)


@pytest.mark.parametrize("start_step", [0, 2])
def test_the_average_is_the_one_of_its_formula(start_step: int) -> None:
    model = Model()
    callback, trainer = started(model, start_step=start_step)
    expected = model.linear.weight.detach().double()
    for step in range(1, 5):
        advance(callback, trainer, model)
        callback.on_train_batch_end(trainer, model, None, None, 1)  # a batch whose gradients are only added up
        weight = model.linear.weight.detach().double()
        expected = weight if step <= start_step else 0.75 * expected + 0.25 * weight
    checkpoint = saved(callback, trainer, model)
    torch.testing.assert_close(checkpoint["state_dict"]["linear.weight"].double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(checkpoint[TRAINED]["linear.weight"], model.linear.weight)
    assert set(checkpoint[TRAINED]) == {"linear.weight", "linear.bias"}
    assert list(checkpoint["state_dict"]) == list(model.state_dict())


def test_a_validation_sees_the_average_and_training_gets_its_weights_back_in_place() -> None:
    model = Model()
    callback, trainer = started(model)
    advance(callback, trainer, model)
    before, address = model.linear.weight.detach().clone(), model.linear.weight.data_ptr()
    average = saved(callback, trainer, model)["state_dict"]["linear.weight"]
    callback.on_validation_epoch_start(trainer, model)
    assert torch.equal(model.linear.weight, average)
    assert not torch.equal(average, before)
    callback.on_validation_epoch_end(trainer, model)
    assert torch.equal(model.linear.weight, before)
    assert model.linear.weight.data_ptr() == address


def test_a_checkpoint_goes_on_with_both() -> None:
    model = Model()
    callback, trainer = started(model)
    advance(callback, trainer, model)
    checkpoint = saved(callback, trainer, model)
    other = Model()
    other.load_state_dict(checkpoint["state_dict"])  # as Lightning does, before its callbacks
    restored = AveragedWeights(EMASettings(decay=0.75))
    restored.on_load_checkpoint(trainer, other, checkpoint)
    later: Any = Steps(1)
    restored.on_fit_start(later, other)
    restored.on_train_start(later, other)
    for one, steps, net in ((callback, trainer, model), (restored, later, other)):
        advance(one, steps, net)
    whole, resumed = saved(callback, trainer, model), saved(restored, later, other)

    def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
        return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())

    assert equal(whole["state_dict"], resumed["state_dict"])
    assert equal(whole[TRAINED], resumed[TRAINED])


def test_a_run_that_did_not_average_begins_with_its_weights() -> None:
    model, later = Model(), Model()
    trainer: Any = Steps(5)
    checkpoint = {"state_dict": copy.deepcopy(model.state_dict())}
    callback = AveragedWeights(EMASettings(decay=0.75))
    callback.on_load_checkpoint(trainer, later, checkpoint)
    callback.on_fit_start(trainer, later)
    assert torch.equal(saved(callback, trainer, later)["state_dict"]["linear.weight"], model.linear.weight)


def test_a_run_that_averages_goes_on_averaging() -> None:
    checkpoint = {TRAINED: {}, "etesian": {"config": {"training": {"ema": {"decay": 0.9}}}}}
    check_averaging(Path("last.ckpt"), checkpoint, EMASettings(decay=0.5))
    check_averaging(Path("last.ckpt"), {"state_dict": {}}, None)
    with pytest.raises(UserError, match=r"training\.ema is null") as caught:
        check_averaging(Path("last.ckpt"), checkpoint, None)
    assert "'training.ema={decay: 0.9}'" in str(caught.value)
