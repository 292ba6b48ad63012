"""Norms whose weights can't be divided among processes, in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScalarNorm(nn.Module):
    """Has a weight without an axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.scale


class SharedNorm(nn.Module):
    """Has the weight of every other one."""

    weights: dict[int, nn.Parameter] = {}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = self.weights.setdefault(width, nn.Parameter(torch.ones(width)))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight


class WideNorm(nn.LayerNorm):
    """Takes weights of 32 bits alone."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype != torch.float32:
            raise TypeError("weights of 32 bits only")
        return super().forward(x)


class LostNorm(nn.LayerNorm):
    """Is NaN with weights of 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if self.weight.dtype == torch.float32 else float("nan"))
