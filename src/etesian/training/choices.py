"""What a run may choose beside its loss and optimiser: averaged weights, frozen modules, early stopping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.callbacks import Callback
from torch import nn

from etesian.schema.training import TrainingSettings
from etesian.training.averaging import AveragedWeights, check_averaging, describe_averaging
from etesian.training.early_stopping import StopEarly, describe_early_stopping
from etesian.training.freezing import check_same_frozen, describe_frozen


def chosen_callbacks(training: TrainingSettings) -> list[Callback]:
    """Make the callbacks of averaged weights and early stopping, which go before those that write checkpoints."""
    callbacks: list[Callback] = []
    if training.ema is not None:
        callbacks.append(AveragedWeights(training.ema))
    if training.early_stopping is not None:
        callbacks.append(StopEarly(training.early_stopping))
    return callbacks


def check_choices(path: Path, checkpoint: Mapping[str, Any], training: TrainingSettings) -> None:
    """Check that what a checkpoint holds can be gone on with.

    Raises
    ------
    UserError
        If its weights were averaged and no longer are, or other modules were frozen.
    """
    check_averaging(path, checkpoint, training.ema)
    check_same_frozen(path, checkpoint, training.freeze)


def describe_choices(training: TrainingSettings, model: nn.Module) -> Iterator[str]:
    """Yield a line on each thing that is chosen."""
    if training.freeze:
        yield describe_frozen(model, training.freeze)
    if training.ema is not None:
        yield describe_averaging(training.ema)
    if training.early_stopping is not None:
        yield describe_early_stopping(training.early_stopping)
