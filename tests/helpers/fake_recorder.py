"""What records steps, on a CPU: launching one again computes it again, from the tensors that it was recorded with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class FakeRecorder:
    """Counts what it is asked for.

    Parameters
    ----------
    device : torch.device or None
        Of the work; None is the CPU.
    module : nn.Module or None
        Whose gradients a launch leaves where they were recorded, as on a GPU; :meth:`watch` names it later.

    Attributes
    ----------
    warm_ups, recordings, launches : int
        How often.
    """

    def __init__(self, device: torch.device | None = None, module: nn.Module | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.parameters: list[nn.Parameter] = []
        if module is not None:
            self.watch(module)
        self.warm_ups = self.recordings = self.launches = 0

    def watch(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warm_ups += 1
        work()

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.recordings += 1
        result = work().clone()
        places = [p.grad for p in self.parameters]

        def launch() -> None:
            self.launches += 1
            result.copy_(work())
            for parameter, place in zip(self.parameters, places, strict=True):
                if place is not None and parameter.grad is not place:
                    parameter.grad = place.copy_(parameter.grad)

        return launch, result
