"""Norms that the project provides beside those of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AutocastLayerNorm(nn.Module):
    """Layer norm over the last axis, returned in the dtype of its input.

    Under autocast a layer norm returns float32; queries and keys have to come back in the dtype of the values.

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
        weight, bias = self.weight, self.bias
        if weight is not None and weight.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
            x_wide = x.to(weight.dtype)
        else:
            x_wide = x
        return nn.functional.layer_norm(x_wide, (self.num_channels,), weight, bias, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the constants."""
        return f"{self.num_channels}, eps={self.eps}, bias={self.bias is not None}"
