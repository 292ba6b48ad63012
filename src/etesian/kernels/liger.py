"""Kernels of Liger that are not built as their slots build a layer; imported only where a config names them.

``liger_kernel.transformers.rms_norm.LigerRMSNorm`` needs no such adapter. Liger's own MLPs make their Linears
themselves; those here take them from the mapping, as the MLPs of :mod:`etesian.kernels.glu` do, and have the names of
their parameters. The kernels compute in float32 inside, whatever comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from liger_kernel.ops.geglu import LigerGELUMulFunction
from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction
from liger_kernel.transformers.layer_norm import LigerLayerNorm as _LigerLayerNorm
from torch import Tensor, nn

from etesian.kernels.glu import GeGLU, SwiGLU

if TYPE_CHECKING:
    from etesian.kernels.resolve import LayerKernels


class LigerLayerNorm(_LigerLayerNorm):
    """Liger's layer norm, made as ``torch.nn.LayerNorm`` is: eps 1e-5, a weight of ones, a bias of zeros.

    Liger's own class has another eps, and with ``bias=True`` begins with a random bias. Names and shapes of the
    parameters are those of torch, so weights pass from one to the other. The result has the dtype of the input; under
    autocast torch returns float32.

    Parameters
    ----------
    num_channels : int
        Size of the last axis.
    eps : float
        Added to the variance.
    """

    def __init__(self, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__(num_channels, eps=eps)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class LigerSwiGLU(SwiGLU):
    """:class:`etesian.kernels.glu.SwiGLU` with gate and product in one kernel of Liger, forward and backward.

    The kernel reads gate and value side by side, as `linear_in` returns them: nothing is copied, and neither the
    activation of the gate nor its gradient is stored.
    """

    def gated(self, hidden: Tensor) -> Tensor:
        """Return silu(gate) * value [..., hidden] of both side by side, [..., 2 hidden]."""
        rows = LigerFusedGateUpSiLUMulFunction.apply(hidden.flatten(0, -2))  # its backward pass knows two axes only
        return rows.view(*hidden.shape[:-1], hidden.shape[-1] // 2)


class LigerGeGLU(GeGLU):
    """:class:`etesian.kernels.glu.GeGLU` with ``approximate=tanh``, gate and product in one kernel of Liger.

    The kernel wants gate and value apart, so both are copied first.

    Parameters
    ----------
    in_features, hidden_features, out_features, layer_kernels
        As for :class:`etesian.kernels.glu.GLU`.
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int, layer_kernels: LayerKernels) -> None:
        super().__init__(in_features, hidden_features, out_features, layer_kernels, approximate="tanh")

    def gated(self, hidden: Tensor) -> Tensor:
        """Return gelu(gate) * value [..., hidden] of both side by side, [..., 2 hidden]."""
        # Copies even of one row, whose halves are contiguous: the backward pass writes into what it was given.
        gate, value = (half.clone(memory_format=torch.contiguous_format) for half in hidden.chunk(2, dim=-1))
        return LigerGELUMulFunction.apply(gate, value)
