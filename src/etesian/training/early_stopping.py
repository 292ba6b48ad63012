"""A run that ends once its validation loss no longer falls."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping

from etesian.schema.training import EarlyStoppingSettings


class StopEarly(EarlyStopping):
    """Lightning's early stopping on ``val_loss``, which all processes agree on and checkpoints keep the counts of.

    A run that ended so, and is started again, ends at once, unless its patience has grown.

    Parameters
    ----------
    settings : EarlyStoppingSettings
        Patience and least difference.
    """

    def __init__(self, settings: EarlyStoppingSettings) -> None:
        super().__init__(
            "val_loss", settings.min_delta, settings.patience, check_finite=False, check_on_train_epoch_end=False
        )
        self.settings = settings

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the counts of a checkpoint; the patience is this run's."""
        super().load_state_dict(state_dict)
        self.patience = self.settings.patience

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End a run that has ended so already."""
        if self._exhausted:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say why the run has ended."""
        if self._exhausted and trainer.is_global_zero:
            delta = self.settings.min_delta
            by = f" by more than {delta:g}" if delta else ""
            print(
                f"Stopped early at step {trainer.global_step}: in {_validations(self.wait_count)} val_loss has not "
                f"fallen{by} below {float(self.best_score):.6g} (training.early_stopping)",
                flush=True,
            )

    @property
    def _exhausted(self) -> bool:
        return self.wait_count >= self.patience


def describe_early_stopping(settings: EarlyStoppingSettings) -> str:
    """Say in a line when a run is ended early."""
    by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
    return f"stops early after {_validations(settings.patience)} without a val_loss that is lower{by}"


def _validations(count: int) -> str:
    return f"{count} validation{'s' * (count != 1)}"
