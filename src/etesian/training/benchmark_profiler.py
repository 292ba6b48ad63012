"""``diagnostics.benchmark_profiler``: watches the steps of a run and tells at its end where the time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from etesian.errors import UserError
from etesian.files import write_json, write_text
from etesian.runtime.compile import Compilation
from etesian.runtime.device import DeviceClock
from etesian.schema.config import Config
from etesian.schema.diagnostics import BenchmarkProfilerSettings
from etesian.training.bottleneck import bottleneck
from etesian.training.module import ForecastModule
from etesian.training.step_clock import StepClock
from etesian.training.step_profile import (
    StepProfile,
    parts_csv,
    profile_table,
    steps_csv,
    summarise,
    throughput_line,
)
from etesian.training.trace import MEMORY, OPERATORS, TRACE, Trace

KEY = "diagnostics.benchmark_profiler"


class BenchmarkProfiler(Callback):
    """Times the steps, traces some on request, and reports.

    Parameters
    ----------
    config : Config
        The experiment.
    device : torch.device
        Of this process.
    folder : Path
        Where ``profile.json``, ``parts.csv``, ``steps.csv`` and the trace are written, by the first process.
    compilation : Compilation, optional
        What of the model is compiled.

    Attributes
    ----------
    clock : StepClock
        The ``profiler`` of Lightning's trainer.
    """

    def __init__(
        self, config: Config, device: torch.device, folder: Path, compilation: Compilation | None = None
    ) -> None:
        self.config, self.folder, self.compilation = config, folder, compilation
        self.settings = config.diagnostics.benchmark_profiler
        self.device_clock = DeviceClock(device)
        self.clock = StepClock(self.device_clock, self.settings.untimed, one_graph=config.training.cuda_graphs)
        self.trace: Trace | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hook the modules."""
        assert isinstance(pl_module, ForecastModule)
        model = pl_module.forecaster.model
        self.clock.watch(model, pl_module.loss, self.compilation)
        if self.settings.traced and trainer.is_global_zero:
            first, steps = self.settings.warmup, self.settings.traced
            self.trace = Trace(model, self.clock, first, steps, self.folder, self.compilation)
            self.clock.after_step = self.trace.after_step
            self.trace.after_step(0)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report."""
        self._let_go()
        self.clock.finish()
        profile = self._summarise(trainer)
        profiles = _gathered(profile, trainer)
        if trainer.is_global_zero:
            self._report(profile, profiles, trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stop the tracer."""
        self._let_go()

    def _let_go(self) -> None:
        self.clock.unwatch()
        if self.trace is not None:
            self.trace.stop()

    def _summarise(self, trainer: pl.Trainer) -> StepProfile | None:
        if not self.clock.steps:
            return None
        batch = self.config.dataloader.batch_size.training * self.config.system.hardware.model_copies
        return summarise(self.clock.steps, batch, self.device_clock.peak_held_bytes())

    def _report(self, profile: StepProfile | None, profiles: list[StepProfile | None], trainer: pl.Trainer) -> None:
        console = Console()
        if profile is None:
            untimed = self.settings.untimed
            text = f"{KEY}: no step was timed, the first {untimed} of a process are left out"
            console.print(text, highlight=False, soft_wrap=True)
            return
        sentence = bottleneck(profile, self.config)
        content = {
            "device": self.device_clock.name,
            "precision": self.config.training.precision,
            "untimed_steps": self.settings.untimed,
            "bottleneck": sentence,
            **profile.to_json(),
            "processes": [None if other is None else other.to_json() for other in profiles],
        }
        write_json(self.folder / "profile.json", content)
        write_text(self.folder / "parts.csv", parts_csv(profile))
        write_text(self.folder / "steps.csv", steps_csv(self.clock.steps, profile))
        for logger in trainer.loggers:
            logger.log_metrics(profile.metrics(), step=trainer.global_step - 1)
        console.print(profile_table(profile))
        console.print(throughput_line(profile), highlight=False)
        if len(profiles) > 1:
            console.print(_processes_line(profiles), highlight=False)
        console.print(f"bottleneck: {sentence}", highlight=False)
        console.print(f"profile: {self.folder}{self._traced()}", highlight=False, soft_wrap=True)

    def _traced(self) -> str:
        there = [name for name in (TRACE, OPERATORS, MEMORY) if self.trace and (self.folder / name).is_file()]
        return f" ({', '.join(there)})" if there else ""


def check_length(settings: BenchmarkProfilerSettings, steps: int, where: str) -> None:
    """Check that a run is long enough for a step to be timed.

    Parameters
    ----------
    settings : BenchmarkProfilerSettings
        The section.
    steps : int
        Optimiser steps of the run.
    where : str
        What sets their number.

    Raises
    ------
    UserError
        If it is not.
    """
    if settings.mode == "none" or steps > settings.untimed:
        return
    why = f"the first {settings.warmup} warm up"
    if settings.traced:
        why += f", {settings.traced + 1} are for the trace"
    raise UserError(
        f"no step is left to be timed: there are {steps}, {why}",
        where=where,
        allowed=f"at least {settings.untimed + 1} steps",
        mend=f"more steps, or a smaller {KEY}.warmup",
    )


def _gathered(profile: StepProfile | None, trainer: pl.Trainer) -> list[StepProfile | None]:
    """Return what each process found, by rank."""
    if trainer.world_size == 1:
        return [profile]
    profiles: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(profiles, profile)
    return profiles


def _processes_line(profiles: list[StepProfile | None]) -> str:
    """Say how the processes differ."""
    means = [profile.mean_ms for profile in profiles if profile is not None]
    waits = [profile.share("data_wait") for profile in profiles if profile is not None]
    return (
        f"{len(profiles)} processes: the above is the first; steps of {min(means):.4g} to {max(means):.4g} ms, "
        f"data wait of {min(waits):.0%} to {max(waits):.0%}"
    )
