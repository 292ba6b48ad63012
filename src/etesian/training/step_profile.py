"""Where the time of a training step goes: numbers over the timed steps of a process, as table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import resource
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from etesian.training.step_clock import LABELS, StepTimes

_BAR = 20  # letters for a share of 100%


@dataclass(frozen=True)
class Part:
    """A part of the step: its time on the device and on the host in ms, and its share of the step."""

    name: str
    label: str
    mean_ms: float
    median_ms: float
    share: float
    host_mean_ms: float


@dataclass(frozen=True)
class StepProfile:
    """The timed steps of one process.

    Attributes
    ----------
    steps : int
        How many.
    samples_per_step : float
        Over all processes.
    mean_ms, median_ms : float
        Time of a step.
    parts : tuple of Part
        They add up to the mean.
    host_bound : float or None
        Share of the steps in which the device waited for the host's calls; None on a CPU.
    device_peak_bytes, device_kept_bytes : int or None
        The most that tensors held, and the most that was kept for them; None on a CPU.
    host_peak_bytes : int
        The most memory of the process, without that of worker processes.
    """

    steps: int
    samples_per_step: float
    mean_ms: float
    median_ms: float
    parts: tuple[Part, ...]
    host_bound: float | None
    device_peak_bytes: int | None
    device_kept_bytes: int | None
    host_peak_bytes: int

    @property
    def samples_per_second(self) -> float:
        """Samples of all processes in a second."""
        return self.samples_per_step * self.steps_per_second

    @property
    def steps_per_second(self) -> float:
        """Optimiser steps in a second."""
        return 1e3 / self.mean_ms

    def share(self, name: str) -> float:
        """Return the share of a part; 0 where there is none of that name."""
        return next((part.share for part in self.parts if part.name == name), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        rates = {"samples_per_second": self.samples_per_second, "steps_per_second": self.steps_per_second}
        return {**asdict(self), **rates}

    def metrics(self) -> dict[str, float]:
        """Return what loggers take: names that begin with ``profiler/``."""
        values = {f"profiler/{part.name}_ms": part.mean_ms for part in self.parts}
        values["profiler/step_ms"] = self.mean_ms
        values["profiler/samples_per_second"] = self.samples_per_second
        values["profiler/host_peak_gb"] = self.host_peak_bytes / 1e9
        if self.device_peak_bytes is not None:
            values["profiler/device_peak_gb"] = self.device_peak_bytes / 1e9
        return values


def summarise(steps: Sequence[StepTimes], batch_size: int, peak: tuple[int, int] | None) -> StepProfile:
    """Return the numbers over timed steps.

    Parameters
    ----------
    steps : sequence of StepTimes
        At least one.
    batch_size : int
        Samples of a batch, of all processes together.
    peak : pair of int, optional
        What :meth:`etesian.runtime.device.DeviceClock.peak_held_bytes` returns: None on a CPU.
    """
    totals = [1e3 * sum(step.seconds.values()) for step in steps]
    mean = statistics.fmean(totals)
    parts = []
    for name in (name for name in LABELS if any(name in step.seconds for step in steps)):
        times = [1e3 * step.seconds.get(name, 0.0) for step in steps]
        host = statistics.fmean(1e3 * step.host_seconds.get(name, 0.0) for step in steps)
        part = statistics.fmean(times)
        parts.append(Part(name, LABELS[name], part, statistics.median(times), part / mean, host))
    return StepProfile(
        steps=len(steps),
        samples_per_step=batch_size * statistics.fmean(step.batches for step in steps),
        mean_ms=mean,
        median_ms=statistics.median(totals),
        parts=tuple(parts),
        host_bound=None if peak is None else statistics.fmean(step.host_bound for step in steps),
        device_peak_bytes=None if peak is None else peak[0],
        device_kept_bytes=None if peak is None else peak[1],
        host_peak_bytes=peak_host_bytes(),
    )


def profile_table(profile: StepProfile) -> Table:
    """Lay the parts out for a terminal of 80 columns."""
    title = f"Time of a training step, {profile.steps} steps timed"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("part", no_wrap=True)
    for name in ("mean ms", "median ms", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for part in profile.parts:
        bar = Text("█" * round(_BAR * part.share), style="cyan")
        table.add_row(part.label, _ms(part.mean_ms), _ms(part.median_ms), f"{part.share:.1%}", bar)
    table.add_section()
    table.add_row("step", _ms(profile.mean_ms), _ms(profile.median_ms), "", "", style="bold")
    return table


def throughput_line(profile: StepProfile) -> str:
    """Say samples and steps a second, and the peaks of memory."""
    rate = f"{profile.samples_per_second:.4g} samples/s, {profile.steps_per_second:.4g} steps/s"
    memory = f"{profile.host_peak_bytes / 1e9:.2f} GB on the host"
    if profile.device_peak_bytes is not None and profile.device_kept_bytes is not None:
        kept = f"{profile.device_kept_bytes / 1e9:.2f} GB kept"
        memory = f"{profile.device_peak_bytes / 1e9:.2f} GB on the device ({kept}), {memory}"
    return f"{rate}; peak memory {memory}"


def parts_csv(profile: StepProfile) -> str:
    """Return the parts, a line each, and the whole step."""
    rows = [[p.name, p.mean_ms, p.median_ms, p.share, p.host_mean_ms] for p in profile.parts]
    rows.append(["step", profile.mean_ms, profile.median_ms, 1.0, sum(p.host_mean_ms for p in profile.parts)])
    return _csv(["part", "mean_ms", "median_ms", "share", "host_mean_ms"], rows)


def steps_csv(steps: Sequence[StepTimes], profile: StepProfile) -> str:
    """Return the steps, a line each with the ms of every part; they are numbered from 0 in the process."""
    names = [part.name for part in profile.parts]
    rows = [
        [step.number, *(1e3 * step.seconds.get(name, 0.0) for name in names), 1e3 * sum(step.seconds.values())]
        for step in steps
    ]
    return _csv(["step", *(f"{name}_ms" for name in names), "step_ms"], rows)


def peak_host_bytes() -> int:
    """Return the most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _ms(milliseconds: float) -> str:
    digits = 3 if milliseconds < 10 else 2 if milliseconds < 100 else 1
    return f"{milliseconds:,.{digits}f}"


def _csv(header: list[str], rows: list[list[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    return stream.getvalue()
