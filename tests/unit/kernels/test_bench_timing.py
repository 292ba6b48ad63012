"""Times of kernels side by side, with a clock that does not tick by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etesian.kernels.bench.timing import LONG, QUEUED_CALLS, Ceilings, Spread, interleave, measure_ceilings
from etesian.runtime.device import DeviceClock


class SlowClock:
    """Takes a fixed time for each work, more from round to round."""

    device = torch.device("cpu")
    cache_bytes = 1

    def __init__(self, seconds: dict[Callable, float]) -> None:
        self.table, self.order, self.rounds = seconds, [], 0.0
        self.queued: list[int] = []

    def seconds(self, work: Callable[[int], object], calls: int) -> tuple[float, float]:
        for number in range(calls):
            work(number)
        self.order.append(work)
        self.rounds += 1e-6
        return self.table[work] + self.rounds, 0.5 * self.table[work]

    def queued_seconds(self, work: Callable[[int], object], calls: int, host_seconds: float) -> float | None:
        self.queued.append(calls)
        return 0.25 * self.table[work]

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        return None

    def release(self) -> None:
        return None


def test_rounds_begin_with_another_kernel_each() -> None:
    calls: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    works = {name: taken.append for name, taken in calls.items()}
    clock = SlowClock(dict.fromkeys(works.values(), 1e-3))
    times = interleave(works, clock, repeats=3, min_seconds=0.03)
    a, b, c = works.values()
    assert clock.order[6:] == [a, b, c, b, c, a, c, a, b]  # the first six warm up
    assert clock.queued == [QUEUED_CALLS] * 9
    assert times["a"].calls == 10
    assert calls["a"][-10:] == list(range(10))
    assert times["a"].call.median == pytest.approx(1.0, rel=0.02)
    assert times["a"].call.low < times["a"].call.median < times["a"].call.high
    assert times["a"].device == pytest.approx(0.25)
    assert times["a"].host == pytest.approx(0.5)
    assert times["a"].host_bound


def test_long_calls_are_made_once_and_not_queued() -> None:
    prepared: list[str] = []
    works = {"long": lambda number: number, "short": lambda number: number + 1}
    clock = SlowClock({works["long"]: 2 * LONG, works["short"]: 1e-3})
    times = interleave(works, clock, repeats=2, min_seconds=0.002, prepare={"long": lambda: prepared.append("long")})
    assert times["long"].calls == 1
    assert times["long"].device is None
    assert not times["long"].host_bound
    assert prepared == ["long"] * 3  # before the warm-up and before each sample
    assert interleave(works, clock, repeats=1, min_seconds=1e-3, queued=False)["short"].device is None


def test_a_spread() -> None:
    spread = Spread.of([0.003, 0.001, 0.002])
    assert (spread.median, spread.low, spread.high) == pytest.approx((2.0, 1.0, 3.0))
    assert spread.relative == pytest.approx(0.5)


def test_the_larger_floor_counts() -> None:
    ceilings = Ceilings(1e9, 1e12, "float32")
    assert ceilings.floor_ms(1e6, 1e9) == (pytest.approx(1.0), "bytes")
    assert ceilings.floor_ms(1e6, 1e10) == (pytest.approx(10.0), "matrix products")
    assert Ceilings(1e9, None, "float32").floor_ms(1e6, 1e10) == (pytest.approx(1.0), "bytes")


def test_a_cpu_is_measured() -> None:
    clock = DeviceClock(torch.device("cpu"))
    ceilings = measure_ceilings(clock, torch.float32, products=True)
    assert 1e8 < ceilings.copy_bytes_per_second < 1e13
    assert ceilings.flops_per_second is not None
    assert 1e8 < ceilings.flops_per_second < 1e14
    assert clock.name == f"cpu, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    assert clock.queued_seconds(int, 3, 1.0) is None
    assert clock.peak_bytes(int) is None
    assert (clock.held_bytes(), clock.free_bytes()) == (None, None)
