"""Norms that the project provides beside those of torch: they return the dtype of their input.

Under autocast torch's norms return float32, and keep a copy of their input in float32 for the backward pass. Where the
next layer computes in 16 bits, that is twice the bytes to write, to keep and to read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_NARROW = (torch.bfloat16, torch.float16)


class AutocastLayerNorm(nn.Module):
    """Layer norm over the last axis, returned in the dtype of its input.

    Numbers of 16 bits are computed in float32; for the backward pass the input is kept as it is.

    Parameters
    ----------
    num_channels : int
        Size of the last axis.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether to learn a weight (and a bias, if `bias`).
    bias : bool
        Whether to learn a bias.
    """

    def __init__(
        self, num_channels: int, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.num_channels, self.eps = num_channels, eps
        self.weight = nn.Parameter(torch.ones(num_channels)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(num_channels)) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., C]; the result has the shape and the dtype of x."""
        wide = _wide(x, self.weight)
        weight, bias = (None if p is None else p.to(wide) for p in (self.weight, self.bias))
        if x.dtype in _NARROW and not torch.compiler.is_compiling():  # a compiler finds out by itself what to keep
            narrow: Tensor = _NarrowLayerNorm.apply(x, weight, bias, self.eps, wide)
            return narrow
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.layer_norm(x.to(wide), (self.num_channels,), weight, bias, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the constants."""
        return f"{self.num_channels}, eps={self.eps}, bias={self.bias is not None}"


class AutocastRMSNorm(nn.Module):
    """RMS norm over the last axis, returned in the dtype of its input.

    Numbers of 16 bits are computed in float32.

    Parameters
    ----------
    num_channels : int
        Size of the last axis.
    eps : float
        Added to the mean of squares.
    elementwise_affine : bool
        Whether to learn a weight.
    """

    def __init__(self, num_channels: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        super().__init__()
        self.num_channels, self.eps = num_channels, eps
        self.weight = nn.Parameter(torch.ones(num_channels)) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., C]; the result has the shape and the dtype of x."""
        wide = _wide(x, self.weight)
        weight = None if self.weight is None else self.weight.to(wide)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.rms_norm(x.to(wide), (self.num_channels,), weight, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the constants."""
        return f"{self.num_channels}, eps={self.eps}"


class _NarrowLayerNorm(torch.autograd.Function):
    """Layer norm of 16-bit numbers, computed in a wider dtype; what is wide lives no longer than the call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, wide: torch.dtype
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            out, mean, rstd = torch.native_layer_norm(x.to(wide), x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return out.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        needed = [needs and t is not None for needs, t in zip(ctx.needs_input_grad[:3], (x, weight, bias), strict=True)]
        with torch.autocast(x.device.type, enabled=False):
            gradients = torch.ops.aten.native_layer_norm_backward(
                grad.to(mean.dtype), x.to(mean.dtype), x.shape[-1:], mean, rstd, weight, bias, needed
            )
        of_x, of_weight, of_bias = (g if wanted else None for g, wanted in zip(gradients, needed, strict=True))
        return None if of_x is None else of_x.to(x.dtype), of_weight, of_bias, None, None


def _wide(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype to compute in: 32 bits, or 64 where there are some."""
    widest = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return torch.promote_types(widest, torch.float32)
