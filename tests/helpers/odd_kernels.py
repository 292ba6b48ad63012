"""Kernels that are right, or nearly, and unusual in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _WritesItsCotangent(torch.autograd.Function):
    """Doubles; the gradient is computed where the gradient of the result lies, as some libraries do."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(2)


class WritesItsCotangent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _WritesItsCotangent.apply(x)


class WritesItsInput(nn.Module):
    """Clears its input once it has read it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        x.detach().zero_()
        return y


class WrongNorm(nn.LayerNorm):
    """A layer norm with an eps that is too large."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, 0.1)


class NotCompiled(nn.Module):
    """Keeps the compiler out."""

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Narrow(nn.Module):
    """Exists in 32 bits only."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("only float32")
        return x.sin()


class _Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.sin()


class LostLater(_Counting):
    """Returns NaN from its fourth call on."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * float("nan") if self.calls > 3 else y


class Drifts(_Counting):
    """Grows from call to call."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (1 + 0.1 * (self.calls > 3))


class FailsLater(_Counting):
    """Fails once it is told to."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        if FailsLater.broken:
            raise RuntimeError("spent")
        return super().forward(x)


class Random(nn.Module):
    """Another function each time, and right each time that it is compared with its own numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x.sin(), 0.5)
