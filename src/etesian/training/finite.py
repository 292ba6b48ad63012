"""A run whose loss is no longer a number stops: it would go on for hours and end with nothing."""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from etesian.errors import UserError


class FiniteLosses(Callback):
    """Stops at a training or validation loss that is NaN or infinite.

    Parameters
    ----------
    interval : int
        Optimiser steps between two looks at the training loss; each waits for the device. The same on every process,
        since the loss that is looked at is the mean over all of them.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._looked_at = -1

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the training loss after the first step, and then every `interval` steps."""
        step = trainer.global_step
        if step != self._looked_at and (step == 1 or step % self.interval == 0):
            self._looked_at = step
            self._check(trainer, "train_loss", f"after step {step}")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the validation loss."""
        self._check(trainer, "val_loss", f"of epoch {trainer.current_epoch + 1}")

    def _check(self, trainer: pl.Trainer, name: str, when: str) -> None:
        loss = trainer.callback_metrics.get(name)
        if loss is None or math.isfinite(float(loss)):
            return
        kind = "training" if name == "train_loss" else "validation"
        raise UserError(
            f"the {kind} loss {when} is {float(loss)}",
            where="training.optimization.lr",
            mend="a lower learning rate, or training.gradient_clip.algorithm=norm training.gradient_clip.val=1.0; "
            "diagnostics.debug.anomaly_detection=true finds the operation",
        )
