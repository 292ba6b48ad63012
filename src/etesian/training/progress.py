"""Progress of a run: bars on a terminal, a plain line now and then in a log file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar, Timer
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text
from torch import Tensor

_REDRAW = 0.25  # seconds between redraws on a terminal; each reads the loss, which waits for the device
_FIRST_INTERVAL, _LAST_INTERVAL, _SHARE = 10.0, 300.0, 0.02  # seconds between plain lines, see _interval


class RunProgress(ProgressBar):
    """Epoch, step, loss, learning rate, speed, and the time left for the whole run.

    Parameters
    ----------
    samples_per_step : int, optional
        Samples of an optimiser step, over all processes. When left out: those of a batch, times the
        processes, times the batches that a step accumulates.
    train_loss, val_loss : str
        Names under which the losses are logged.
    console : Console, optional
        Where it is shown; standard output when left out. Bars are drawn where it is a terminal;
        elsewhere lines are printed: after the first step, then every 10 s, less often as the run
        grows older (every 2% of its age, at least every 5 minutes), after validations and at the end.
    clock : callable
        Seconds; for tests.

    Notes
    -----
    The time left is the mean time of a step since the first one of this process, validation and
    checkpoints included, times the steps left; the first step is left out, since it compiles and
    warms up. The speed leaves validation out. Where the run also has a time limit, the sooner end counts.
    """

    def __init__(
        self,
        samples_per_step: int | None = None,
        *,
        train_loss: str = "train_loss",
        val_loss: str = "val_loss",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        if samples_per_step is not None and samples_per_step < 1:
            raise ValueError(f"samples per step must be at least 1, not {samples_per_step}")
        self._samples_per_step = samples_per_step
        self._train_loss, self._val_loss = train_loss, val_loss
        self._console = Console() if console is None else console
        self._clock = clock
        self._enabled = True
        self._live: Live | None = None
        self._began = self._shown = 0.0
        self._first: tuple[float, int] | None = None  # time and step after the first step
        self._loss: Tensor | None = None  # of the last step; read only when it is shown
        self._validation = ""  # what is being validated, while it is
        self._validation_began: float | None = None
        self._validating = 0.0  # seconds of validation since the first step

    def disable(self) -> None:
        """Show nothing, as on ranks other than 0."""
        self._enabled = False

    def enable(self) -> None:
        """Show again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print without breaking the bars."""
        if self._enabled:
            self._console.print(*args, **kwargs)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock and, on a terminal, the display."""
        self._began = self._shown = self._clock()
        self._first, self._validating = None, 0.0
        if self._enabled and self._console.is_interactive:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the step, if it is time to."""
        if not self._enabled:
            return
        now, step = self._clock(), trainer.global_step
        alone = trainer.world_size == 1
        self._loss = _loss_of(outputs if alone else None, trainer, self._train_loss)  # the mean over all processes
        if self._samples_per_step is None:
            self._samples_per_step = _batch_size(batch) * trainer.world_size * trainer.accumulate_grad_batches
        is_first = self._first is None and step > 0
        if is_first:
            self._first = (now, step)
        since = now - self._shown
        due = since >= (_REDRAW if self._live else self._interval(now))
        if is_first or due or step >= self._total(trainer):
            self._show(trainer, now)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the validation out of the speed."""
        self._validation_began = self._clock()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show on a terminal how far the validation is."""
        if self._live is None or trainer.sanity_checking:
            return
        total = sum(trainer.num_val_batches)
        self._validation = f"validating {batch_idx + 1}/{total}"
        now = self._clock()
        if now - self._shown >= _REDRAW:
            self._show(trainer, now)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the validation loss."""
        self._validation = ""
        if self._first is not None and self._validation_began is not None:
            self._validating += self._clock() - self._validation_began
        self._validation_began = None
        if self._enabled and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._show(trainer, self._clock())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._show(trainer, self._clock())
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self._stop()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the terminal back."""
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, trainer: pl.Trainer, now: float) -> None:
        self._shown = now
        parts = self._parts(trainer, now)
        if self._live is None:
            self._console.print("  ".join(parts), soft_wrap=True, highlight=False, markup=False)
            return
        total = self._total(trainer)
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        known = math.isfinite(total)
        bar = Bar(total=total if known else None, completed=trainer.global_step, pulse=not known)
        row.add_row(Text(self._validation or "  ".join(parts[:2])), bar)
        text = Text("  ".join(parts[2:]), overflow="ellipsis", no_wrap=True)
        self._live.update(_stacked(row, text), refresh=True)

    def _parts(self, trainer: pl.Trainer, now: float) -> list[str]:
        """Return what is known now, in words."""
        epoch = f"epoch {trainer.current_epoch + 1}"
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            epoch = f"epoch {min(trainer.current_epoch + 1, trainer.max_epochs)}/{trainer.max_epochs}"
        total = self._total(trainer)
        step = f"step {trainer.global_step}" + (f"/{total:.0f}" if math.isfinite(total) else "")
        parts = [epoch, step]
        if self._loss is not None:
            parts.append(f"loss {float(self._loss):.4g}")
        validation = trainer.callback_metrics.get(self._val_loss)
        if validation is not None:
            parts.append(f"val {float(validation):.4g}")
        rate = _learning_rate(trainer)
        if rate is not None:
            parts.append(f"lr {rate:.2e}")
        seconds = self._seconds_per_step(trainer, now)
        speed = self._samples_per_second(trainer, now)
        if speed is not None:
            parts.append(f"{speed:.3g} samples/s")
        left = self._seconds_left(trainer, seconds)
        if left is not None:
            parts.append(f"{format_duration(left)} left")
        return parts

    def _seconds_per_step(self, trainer: pl.Trainer, now: float) -> float | None:
        if self._first is None:
            return None
        then, step = self._first
        steps = trainer.global_step - step
        return (now - then) / steps if steps > 0 and now > then else None

    def _samples_per_second(self, trainer: pl.Trainer, now: float) -> float | None:
        if self._first is None or self._samples_per_step is None:
            return None
        then, step = self._first
        validating = self._validating + (0.0 if self._validation_began is None else now - self._validation_began)
        seconds = now - then - validating
        steps = trainer.global_step - step
        return self._samples_per_step * steps / seconds if steps > 0 and seconds > 0.0 else None

    def _seconds_left(self, trainer: pl.Trainer, seconds: float | None) -> float | None:
        ends = []
        total = self._total(trainer)
        if seconds is not None and math.isfinite(total):
            ends.append(max(0.0, total - trainer.global_step) * seconds)
        for callback in getattr(trainer, "callbacks", []):
            if isinstance(callback, Timer):
                remaining = callback.time_remaining()
                if remaining is not None:
                    ends.append(max(0.0, remaining))
        return min(ends) if ends else None

    def _total(self, trainer: pl.Trainer) -> float:
        """Return the optimiser steps of the whole run; infinite where nothing limits them."""
        total = float(trainer.estimated_stepping_batches)
        return total if total > 0 else math.inf

    def _interval(self, now: float) -> float:
        return min(_LAST_INTERVAL, max(_FIRST_INTERVAL, _SHARE * (now - self._began)))


def format_duration(seconds: float) -> str:
    """Write a duration: 42 s, 3 min 05 s, 2 h 07 min, 1 d 03 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def _stacked(*lines: Any) -> Table:
    stack = Table.grid(expand=True)
    stack.add_column()
    for line in lines:
        stack.add_row(line)
    return stack


def _loss_of(outputs: Any, trainer: pl.Trainer, name: str) -> Tensor | None:
    """Return the loss of the step just done, or the one last logged."""
    value = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return value.detach() if isinstance(value, Tensor) else trainer.callback_metrics.get(name)


def _batch_size(batch: Any) -> int:
    """Return the length of the first axis of the first tensor in a batch."""
    tensors = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    return next(len(tensor) for tensor in tensors if isinstance(tensor, Tensor))


def _learning_rate(trainer: pl.Trainer) -> float | None:
    if not trainer.optimizers:
        return None
    return float(trainer.optimizers[0].param_groups[0]["lr"])
