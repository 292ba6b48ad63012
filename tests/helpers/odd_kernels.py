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
