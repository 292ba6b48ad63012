"""MLPs with a gate: the hidden features are multiplied by an activation of other hidden features.

``out = W_out (act(W_gate x + b_gate) * (W_value x + b_value)) + b_out`` [1]_. The kinds differ in ``act``, which is
part of the kind and does not come from the slot ``Activation``; the Linears come from the mapping. At one hidden width
a gated MLP has half as many parameters again as a plain one: two thirds of the width make them equal.

References
----------
.. [1] Shazeer 2020, GLU Variants Improve Transformer, https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from etesian.kernels.resolve import LayerKernels


class GLU(nn.Module):
    """Gated MLP; the gate is a sigmoid.

    Parameters
    ----------
    in_features, hidden_features, out_features : int
        Widths; gate and value have `hidden_features` each.
    layer_kernels : LayerKernels
        Where the Linears come from. `linear_in` computes gate and value in one product, the gate's rows first.
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int, layer_kernels: LayerKernels) -> None:
        super().__init__()
        self.linear_in = layer_kernels.Linear(in_features, 2 * hidden_features)
        self.linear_out = layer_kernels.Linear(hidden_features, out_features)

    def activation(self, gate: Tensor) -> Tensor:
        """Return the activation of the gate [..., hidden]."""
        return torch.sigmoid(gate)

    def gated(self, hidden: Tensor) -> Tensor:
        """Return act(gate) * value [..., hidden] of both side by side, [..., 2 hidden]."""
        gate, value = hidden.chunk(2, dim=-1)
        return self.activation(gate) * value

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out]."""
        return self.linear_out(self.gated(self.linear_in(x)))


class SwiGLU(GLU):
    """Gated MLP; the gate is ``g sigmoid(g)``."""

    def activation(self, gate: Tensor) -> Tensor:
        """Return the activation of the gate [..., hidden]."""
        return nn.functional.silu(gate)


class GeGLU(GLU):
    """Gated MLP; the gate is ``g Phi(g)``, Phi the cumulative normal distribution.

    Parameters
    ----------
    in_features, hidden_features, out_features, layer_kernels
        As for :class:`GLU`.
    approximate : str
        ``none``: exactly; ``tanh``: with ``Phi(g) = (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2`` [2]_.

    Raises
    ------
    ValueError
        If `approximate` is something else.

    References
    ----------
    .. [2] Hendrycks, Gimpel 2016, Gaussian Error Linear Units, https://arxiv.org/abs/1606.08415
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        layer_kernels: LayerKernels,
        approximate: str = "none",
    ) -> None:
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}, where 'none' or 'tanh' is due")
        super().__init__(in_features, hidden_features, out_features, layer_kernels)
        self.approximate = approximate

    def activation(self, gate: Tensor) -> Tensor:
        """Return the activation of the gate [..., hidden]."""
        return nn.functional.gelu(gate, approximate=self.approximate)


class ReGLU(GLU):
    """Gated MLP; the gate is ``max(g, 0)``."""

    def activation(self, gate: Tensor) -> Tensor:
        """Return the activation of the gate [..., hidden]."""
        return nn.functional.relu(gate)
