"""The default MLP: two Linears and an Activation, all three from the mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from etesian.kernels.resolve import LayerKernels


class MLP(nn.Module):
    """Linear, Activation, Linear.

    Parameters
    ----------
    in_features, hidden_features, out_features : int
        Widths.
    layer_kernels : LayerKernels
        Where the Linears and the Activation come from.
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int, layer_kernels: LayerKernels) -> None:
        super().__init__()
        self.linear_in = layer_kernels.Linear(in_features, hidden_features)
        self.activation = layer_kernels.Activation()
        self.linear_out = layer_kernels.Linear(hidden_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out]."""
        hidden = self.activation(self.linear_in(x))  # [..., hidden]
        return self.linear_out(hidden)  # [..., out]
