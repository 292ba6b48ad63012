"""A norm that fails in the process, the step and the way that the environment names; and runs as other norms else."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn


class FailingNorm(nn.LayerNorm):
    """Fails as ``ETESIAN_TEST_FAULT`` says, ``WAY@RANK``, in its call number :data:`CALL` that is trained with."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        if not (self.training and torch.distributed.is_initialized()):  # the door, and validation
            return y
        self.calls += 1
        way, _, rank = os.environ["ETESIAN_TEST_FAULT"].partition("@")
        if self.calls <= CALL or int(rank) != torch.distributed.get_rank():
            return y
        if way == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "bug":
            raise KeyError("nothing of that name")
        return y * float("nan") if way == "nan" else y


CALL = 9
"""After the first checkpoint of the tests' runs."""

KERNEL = "ranks_that_fail.FailingNorm"
