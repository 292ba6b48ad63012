"""Kernels of Liger whose constructors differ from those of torch; imported only where a config names them.

``liger_kernel.transformers.rms_norm.LigerRMSNorm`` needs no such adapter.
"""

from __future__ import annotations

from liger_kernel.transformers.layer_norm import LigerLayerNorm as _LigerLayerNorm
from torch import nn


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
