"""How much memory a computation leaves behind, and which operators it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from etesian.runtime.kept_operators import operator_name


def kept_bytes(work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return the result on a CPU, and the bytes that are allocated then and were not before, beside the result's."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        result = work()
    grown = sum(event.self_cpu_memory_usage for event in profile.function_events)
    return result, grown - result.untyped_storage().nbytes()


def highest_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that are allocated at a time on a CPU and were not before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        work()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


class Operators(TorchDispatchMode):
    """Counts the calls of operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[operator_name(func)] += 1
        return func(*args, **(kwargs or {}))
