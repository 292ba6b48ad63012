"""A run that is asked to stop finishes its step, writes a checkpoint and leaves, so that it can go on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from etesian.training.checkpoints import LAST
from etesian.training.run_lock import RunLock
from etesian.training.stop_request import REASONS, SIGNALS, Stopped, StopRequest


class StopAfterStep(Callback):
    """Writes ``last.ckpt`` after the step in which someone asked, and stops.

    Several processes agree every `interval` optimiser steps, since they hear of it at different times; one alone looks
    after each. The last step of an epoch is followed by its validation first.

    Parameters
    ----------
    request : StopRequest
        Who asked.
    folder : Path
        Of the checkpoints.
    interval : int
        Optimiser steps between two times that several processes agree.
    lock : RunLock, optional
        That of the run, whose loss ends it.

    Attributes
    ----------
    after_training : str or None
        The signal that came too late to stop the training, for whoever would do more.
    """

    def __init__(self, request: StopRequest, folder: Path, interval: int, lock: RunLock | None = None) -> None:
        self.request, self.folder, self.interval, self.lock = request, folder, interval, lock
        self._looked_at = -1
        self._agreed: str | None = None
        self.after_training: str | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let signals wait for the end of a step."""
        self._looked_at = trainer.global_step
        self.request.waits = True
        self.request.listen()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here, if someone asked and a step of the optimiser is done."""
        step = trainer.global_step
        if step == self._looked_at:
            return
        self._looked_at = step
        if self.lock is not None:
            self.lock.check_held()
        if self._agreed is None and (trainer.world_size == 1 or step % self.interval == 0):
            self._agreed = self._agree(trainer)
        if self._agreed is not None and not trainer.is_last_batch and step != trainer.max_steps:
            trainer._logger_connector.update_train_step_metrics()  # what Lightning logs of a step after its callbacks
            trainer.save_checkpoint(self.folder / LAST)
            raise Stopped(self._agreed)

    def _agree(self, trainer: pl.Trainer) -> str | None:
        """Return the reason that any process has to stop, the same on all."""
        own = 0 if self.request.reason is None else 1 + REASONS.index(self.request.reason)
        found = trainer.strategy.reduce(torch.tensor(own, device=trainer.strategy.root_device), reduce_op="max")
        return REASONS[int(found) - 1] if int(found) else None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let signals end at once what comes after, one that came in the last step too: the checkpoint is there."""
        self.request.waits = False
        reason = self._agree(trainer)
        self.after_training = reason if reason in SIGNALS else None
