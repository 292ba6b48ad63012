"""An exponential moving average of the weights, for validation and inference; training goes on from the weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from etesian.errors import UserError
from etesian.schema.training import EMASettings

TRAINED = "trained_weights"
"""Key of a checkpoint: the weights that training goes on from, where ``state_dict`` holds their average."""


class AveragedWeights(Callback):
    """Keeps the average of every weight that is trained: a <- decay a + (1 - decay) w after each optimiser step.

    Every validation is of the averages, and checkpoints hold them as their ``state_dict``, so whatever reads a
    checkpoint (scores, forecasts, inference, ``load_weights_only``) takes them. The weights that training goes on from
    lie under :data:`TRAINED`. Buffers are not averaged. Each process averages by itself: their weights are the same.
    The weights keep their addresses.

    Parameters
    ----------
    settings : EMASettings
        Decay and start.
    """

    def __init__(self, settings: EMASettings) -> None:
        self.settings = settings
        self._update = get_ema_multi_avg_fn(settings.decay)
        self._average: dict[str, Tensor] = {}
        self._restored: dict[str, Tensor] | None = None
        self._step = 0

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take the averages of a checkpoint, and give the module the weights that it goes on from.

        Those of a run without an average begin it.
        """
        self._restored = {name: checkpoint["state_dict"][name] for name in _trained(pl_module)}
        pl_module.load_state_dict({**checkpoint["state_dict"], **checkpoint.get(TRAINED, {})})

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the averages beside the weights, on their device."""
        weights = _trained(pl_module)
        start = weights if self._restored is None else self._restored
        self._average = {name: start[name].to(weight, copy=True) for name, weight in weights.items()}
        self._restored = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from the step that the run goes on at."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the averages, once a step of the optimiser is done."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        averages, weights = list(self._average.values()), list(_trained(pl_module).values())
        if self._step <= self.settings.start_step:
            for average, weight in zip(averages, weights, strict=True):
                average.copy_(weight)
        else:
            self._update(averages, weights, 0)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate the averages."""
        self._exchange(pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the weights back to training."""
        self._exchange(pl_module)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the averages into ``state_dict``, the weights under :data:`TRAINED`."""
        weights = checkpoint["state_dict"]
        checkpoint[TRAINED] = {name: weights[name] for name in self._average}
        checkpoint["state_dict"] = {**weights, **self._average}

    def _exchange(self, module: pl.LightningModule) -> None:
        """Exchange averages and weights in place; twice is as before, bit for bit."""
        for name, weight in _trained(module).items():
            kept = weight.clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(kept)


def _trained(module: pl.LightningModule) -> dict[str, Tensor]:
    """Return the weights that are trained, without their gradients."""
    return {name: weight.data for name, weight in module.named_parameters() if weight.requires_grad}


def describe_averaging(settings: EMASettings) -> str:
    """Say in a line what is averaged, and what for."""
    since = f", from step {settings.start_step + 1} on" if settings.start_step else ""
    return f"averaged weights: decay {settings.decay:g} after each step{since}; validation and inference use them"


def check_averaging(path: Path, checkpoint: Mapping[str, Any], settings: EMASettings | None) -> None:
    """Check that a run whose weights are averaged goes on averaging them.

    Raises
    ------
    UserError
        If it would not.
    """
    if TRAINED in checkpoint and settings is None:
        decay = checkpoint["etesian"]["config"]["training"]["ema"]["decay"]
        raise UserError(
            f"{path} is of a run that averages its weights, and training.ema is null",
            where="training.ema",
            allowed="a decay; null in a new run from the averaged weights (training.load_weights_only=true)",
            mend=f"'training.ema={{decay: {decay}}}'",
        )
