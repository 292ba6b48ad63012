"""Where and in which precision a run computes, for what is tried before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from etesian.schema.training import Precision

_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_PARAMETERS = {"64-true": torch.float64, "bf16-true": torch.bfloat16}

BF16_TRUE: Literal["bf16-true"] = "bf16-true"
"""Parameters in bfloat16 too, without autocast: for kernels by themselves, no precision of a run."""


@dataclass(frozen=True)
class Machine:
    """Where and in which precision the run computes.

    Attributes
    ----------
    device : torch.device
        The device.
    precision : str
        ``training.precision``, or `BF16_TRUE`.
    """

    device: torch.device
    precision: Precision | Literal["bf16-true"]

    @property
    def parameters(self) -> torch.dtype:
        """The dtype of parameters and of the model's input."""
        return _PARAMETERS.get(self.precision, torch.float32)

    @property
    def products(self) -> torch.dtype:
        """The dtype of what a Linear returns."""
        return _MIXED.get(self.precision, self.parameters)

    def context(self) -> AbstractContextManager[Any]:
        """Return what a forward pass runs in."""
        if self.precision in _MIXED:
            return torch.autocast(self.device.type, dtype=self.products)
        return _default_dtype(torch.float64) if self.precision == "64-true" else nullcontext()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
