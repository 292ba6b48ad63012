"""Times of several kernels side by side: round by round, so that what else the machine does meets all of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Work = Callable[[int], object]
"""Called with 0, 1, 2, ...: the number chooses the input set."""

QUEUED_CALLS = 8
"""Calls that wait in the device's queue when its own time is taken; few enough that the queue holds all launches."""

LONG = 0.05
"""Seconds of a call from which on its launches don't matter: the device's own time is not taken beside it."""

MOST_CALLS = 1000
"""Calls of one sample at most."""


class Clock(Protocol):
    """What takes times and reads memory on a device; :class:`etesian.runtime.device.DeviceClock` is one."""

    device: torch.device
    cache_bytes: int

    def seconds(self, work: Work, calls: int) -> tuple[float, float]:
        """Return the seconds a call takes, one after the other, and those of them that the host needs to launch it."""

    def queued_seconds(self, work: Work, calls: int, host_seconds: float) -> float | None:
        """Return the seconds a call takes with the launches done beforehand; None where launch and work are one."""

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        """Return the most memory that work takes beside what is held already; None where nobody counts it."""

    def release(self) -> None:
        """Give the memory back that is kept for reuse."""


@dataclass(frozen=True)
class Spread:
    """Milliseconds of one call over the rounds.

    Attributes
    ----------
    median, low, high : float
        Over the rounds.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Summarise samples in seconds."""
        return cls(*(1e3 * value for value in (statistics.median(seconds), min(seconds), max(seconds))))

    @property
    def relative(self) -> float:
        """Half of what lies between lowest and highest, over the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True)
class Timing:
    """What one work took.

    Attributes
    ----------
    call : Spread
        Back-to-back calls, launches included, as a training step makes them.
    host : float
        Milliseconds in which the host launches one call, median.
    device : float or None
        Milliseconds of the device alone, median, with all launches waiting in its queue; None on a CPU, and for calls
        so long that it would be the same.
    calls : int
        Calls in each sample.
    """

    call: Spread
    host: float
    device: float | None
    calls: int

    @property
    def host_bound(self) -> bool:
        """Whether the device waits for the host's launches."""
        return self.device is not None and self.device < 0.8 * self.call.median


def interleave(
    works: Mapping[str, Work],
    clock: Clock,
    *,
    repeats: int,
    min_seconds: float,
    prepare: Mapping[str, Callable[[], None]] | None = None,
    queued: bool = True,
    known: Mapping[str, float] | None = None,
) -> dict[str, Timing]:
    """Time each work once a round; each round begins with another one.

    Parameters
    ----------
    works : mapping
        Name to work; each must have run before.
    clock : Clock
        Of the device.
    repeats : int
        Rounds.
    min_seconds : float
        Time that all samples of one work take together at least, unless that is more than `MOST_CALLS` calls each.
    prepare : mapping, optional
        What to do, untimed, before each sample of a work.
    queued : bool
        Whether the device's own time is taken too.
    known : mapping, optional
        Seconds of a call, where that is known already; other works are called four times to find out.
    """
    prepare, known, each = prepare or {}, known or {}, min_seconds / repeats
    calls = {
        name: _enough(each, known[name]) if name in known else _calls(work, clock, each, prepare.get(name))
        for name, work in works.items()
    }
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    alone: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for round_ in range(repeats):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            if name in prepare:
                prepare[name]()
            taken = clock.seconds(works[name], calls[name])
            samples[name].append(taken)
            short = queued and taken[0] < LONG
            without_host = clock.queued_seconds(works[name], QUEUED_CALLS, taken[1]) if short else None
            if without_host is not None:
                alone[name].append(without_host)
    return {
        name: Timing(
            call=Spread.of([seconds for seconds, _ in taken]),
            host=1e3 * statistics.median(host for _, host in taken),
            device=1e3 * statistics.median(alone[name]) if alone[name] else None,
            calls=calls[name],
        )
        for name, taken in samples.items()
    }


def _calls(work: Work, clock: Clock, seconds: float, prepare: Callable[[], None] | None) -> int:
    """Warm up, and return how many calls take that long."""
    if prepare is not None:
        prepare()
    clock.seconds(work, 2)
    once, _ = clock.seconds(work, 2)
    return _enough(seconds, once)


def _enough(seconds: float, once: float) -> int:
    """Return how many calls take that long, of which one takes `once`."""
    return max(1, min(MOST_CALLS, math.ceil(seconds / max(once, 1e-7))))


@dataclass(frozen=True)
class Ceilings:
    """What the device was seen to do at best.

    Attributes
    ----------
    copy_bytes_per_second : float
        Bytes read plus bytes written of a large copy.
    flops_per_second : float or None
        Of a large matrix product of random numbers; None if it was not needed.
    dtype : str
        Of that product.
    """

    copy_bytes_per_second: float
    flops_per_second: float | None
    dtype: str

    def floor_ms(self, num_bytes: float, flops: float) -> tuple[float, str]:
        """Return the least time that bytes and operations take, and which of the two it is."""
        moving = 1e3 * num_bytes / self.copy_bytes_per_second
        computing = 1e3 * flops / self.flops_per_second if self.flops_per_second else 0.0
        return (moving, "bytes") if moving >= computing else (computing, "matrix products")


def measure_ceilings(clock: Clock, dtype: torch.dtype, *, products: bool) -> Ceilings:
    """Measure the copy bandwidth, and the rate of matrix products of a dtype.

    Parameters
    ----------
    clock : Clock
        Of the device.
    dtype : torch.dtype
        Of the products.
    products : bool
        Whether to measure them.
    """
    is_cpu = clock.device.type == "cpu"
    size = max(4 * clock.cache_bytes, 2**28 if is_cpu else 2**31)  # bytes
    source = torch.randn(size // 4, device=clock.device)
    target = torch.empty_like(source)
    copied = _best(lambda _: target.copy_(source), clock)
    rate = None
    if products:
        width = 1024 if is_cpu else 8192
        a, b = (torch.randn(width, width, device=clock.device).to(dtype) for _ in range(2))
        rate = 2 * width**3 / _best(lambda _: a @ b, clock)
    clock.release()
    return Ceilings(2 * size / copied, rate, str(dtype).removeprefix("torch."))


def _best(work: Work, clock: Clock) -> float:
    clock.seconds(work, 3)
    return min(clock.seconds(work, 3)[0] for _ in range(5))
