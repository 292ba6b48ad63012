"""What records steps, on a CPU: launching one again computes it again, from the tensors that it was recorded with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class FakeRecorder:
    """Counts what it is asked for.

    Attributes
    ----------
    warm_ups, recordings, launches : int
        How often.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.warm_ups = self.recordings = self.launches = 0

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warm_ups += 1
        work()

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.recordings += 1
        result = work().clone()

        def launch() -> None:
            self.launches += 1
            result.copy_(work())

        return launch, result
