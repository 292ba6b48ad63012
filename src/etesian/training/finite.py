"""A run whose loss is no longer a number stops: it would go on for hours and end with nothing.

No checkpoint is written of it either, so the last one that was whole stays.
"""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from etesian.checkpoint.read import lost_weights, shown_weights
from etesian.errors import UserError

LEARNING_RATE = "training.optimization.lr"
MEND = (
    "a lower learning rate, or training.gradient_clip.algorithm=norm training.gradient_clip.val=1.0; "
    "diagnostics.debug.anomaly_detection=true finds the operation"
)


class LostError(UserError):
    """The run is lost, which every process sees at once."""


class FiniteLosses(Callback):
    """Stops at a training or validation loss that is NaN or infinite, and before such weights are written.

    Parameters
    ----------
    interval : int
        Optimiser steps between two looks at the training loss; each waits for the device. The same on every process,
        since the loss that is looked at is the mean over all of them.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._looked_at = -1
        self._own: Tensor | None = None  # the last loss of this process

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the training loss after the first step of this process, and then every `interval` steps."""
        self._own, step = (outputs or {}).get("loss"), trainer.global_step
        if step != self._looked_at and (self._looked_at < 0 or step % self.interval == 0):
            self._look(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the loss of the last step of an epoch, and of the run."""
        self._look(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Look at the loss and the weights before they are written: the checkpoint before stays if they are lost."""
        self._look(trainer)
        lost = lost_weights(checkpoint["state_dict"])
        if lost:
            what = f"after step {trainer.global_step} weights are NaN or infinite: {shown_weights(lost)}"
            raise LostError(what, where=LEARNING_RATE, mend=MEND)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the validation loss."""
        self._check(trainer, "val_loss", f"of epoch {trainer.current_epoch + 1}")

    def _look(self, trainer: pl.Trainer) -> None:
        self._looked_at = trainer.global_step
        self._check(trainer, "train_loss", f"after step {trainer.global_step}")

    def _check(self, trainer: pl.Trainer, name: str, when: str) -> None:
        loss = trainer.callback_metrics.get(name)
        if loss is None or math.isfinite(float(loss)):
            return
        kind = "training" if name == "train_loss" else "validation"
        whose = self._whose(trainer) if name == "train_loss" else ""
        raise LostError(f"the {kind} loss {when} is {float(loss)}{whose}", where=LEARNING_RATE, mend=MEND)

    def _whose(self, trainer: pl.Trainer) -> str:
        """Say of which processes it is, where there are several; every process has to call it."""
        if trainer.world_size == 1 or self._own is None:
            return ""
        lost = torch.zeros(trainer.world_size, device=self._own.device)
        lost[trainer.global_rank] = float(not bool(self._own.isfinite()))
        found = trainer.strategy.reduce(lost, reduce_op="sum")
        assert isinstance(found, Tensor)
        ranks = [str(rank) for rank, count in enumerate(found.tolist()) if count]
        if len(ranks) in (0, trainer.world_size):
            return ", in every process" * bool(ranks)
        return f", in process{'es' * (len(ranks) > 1)} {', '.join(ranks)} of {trainer.world_size}"
