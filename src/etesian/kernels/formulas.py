"""The formulas of the families, written out in plain arithmetic: what a kernel is compared with; not for training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from etesian.kernels.constants import DTYPE_EPSILON


class Linear(nn.Module):
    """``W x + b``."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out]."""
        y = (x[..., None, :] * self.weight).sum(-1)
        return y if self.bias is None else y + self.bias


class LayerNorm(nn.Module):
    """``(x - mean(x)) / sqrt(var(x) + eps) (weight_offset + weight) + bias`` over the last axis."""

    def __init__(
        self,
        num_channels: int,
        eps: float,
        elementwise_affine: bool = True,
        bias: bool = True,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.eps, self.weight_offset = eps, weight_offset
        self.weight = nn.Parameter(torch.zeros(num_channels)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(num_channels)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., C]."""
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()
        if self.weight is not None:
            y = y * (self.weight_offset + self.weight)
        return y if self.bias is None else y + self.bias


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) (weight_offset + weight)`` over the last axis."""

    def __init__(
        self, num_channels: int, eps: float | str, elementwise_affine: bool = True, weight_offset: float = 0.0
    ) -> None:
        super().__init__()
        self.eps, self.weight_offset = eps, weight_offset
        self.weight = nn.Parameter(torch.zeros(num_channels)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., C]."""
        eps = torch.finfo(x.dtype).eps if self.eps == DTYPE_EPSILON else float(self.eps)
        y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        return y if self.weight is None else y * (self.weight_offset + self.weight)


class GELU(nn.Module):
    """``x Phi(x)``, Phi the cumulative normal distribution, or its approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x."""
        if self.approximate == "tanh":
            return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
        return 0.5 * x * (1 + (x / math.sqrt(2)).erf())


class SiLU(nn.Module):
    """``x / (1 + exp(-x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x."""
        return x / (1 + (-x).exp())


class ReLU(nn.Module):
    """``max(x, 0)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x."""
        return torch.where(x > 0, x, torch.zeros_like(x))
