"""A run that is asked to stop finishes its step, writes a checkpoint and leaves, so that it can go on exactly."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from etesian.training.checkpoints import LAST
from etesian.training.run_lock import RunLock

STOPPED = 75
"""Exit status of a run that SIGUSR1 or ``training.max_time`` ended before its last step; after SIGTERM it is 143."""

REASONS = ("training.max_time", "SIGUSR1", "SIGTERM")
"""Who may ask a run to stop; of several the last counts."""

_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class Stopped(SystemExit):
    """The run was asked to stop, and what there is of it is kept.

    Parameters
    ----------
    reason : str
        One of :data:`REASONS`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(128 + signal.SIGTERM if reason == "SIGTERM" else STOPPED)
        self.reason = reason


class StopRequest:
    """Who asked this run to stop, if anyone did.

    Parameters
    ----------
    max_time : float, optional
        Seconds after which the run stops, counted from here.
    """

    def __init__(self, max_time: float | None = None) -> None:
        self.max_time = max_time
        self.began = time.monotonic()
        self.asked: str | None = None
        self.waits = False  # whether a step is under way that is to be finished first

    @property
    def reason(self) -> str | None:
        """Who asked; None while nobody has."""
        if self.asked is None and self.max_time is not None and time.monotonic() - self.began >= self.max_time:
            self.asked = "training.max_time"
        return self.asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGUSR1 and SIGTERM in the body; outside the main thread nothing can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is signal.SIG_IGN:  # the process is about to leave with a status of its own
                    continue
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Put the handlers in place, instead of those that Lightning has put there."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        first = self.asked is None
        self.asked = self.asked or signal.Signals(number).name
        if first and not self.waits:
            raise Stopped(self.asked)


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
    """

    def __init__(self, request: StopRequest, folder: Path, interval: int, lock: RunLock | None = None) -> None:
        self.request, self.folder, self.interval, self.lock = request, folder, interval, lock
        self._looked_at = -1
        self._agreed: str | None = None

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
        """Let signals end at once what comes after: the checkpoint is there."""
        self.request.waits = False
