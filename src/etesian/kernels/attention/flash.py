"""Attention by the library flash_attn; imported only where a config names it.

The library looks at the keys in the window only, in 16 bits, on GPUs.
"""

from __future__ import annotations

import torch
from flash_attn import flash_attn_func
from torch import Tensor

from etesian.kernels.attention.base import Attention


class FlashAttention(Attention):
    """Attention by ``flash_attn.flash_attn_func``."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; see :data:`etesian.kernels.slots.ATTENTION_CALL`. Queries and keys get the dtype of the value.

        Raises
        ------
        TypeError
            If the value has not 16 bits.
        """
        if value.dtype not in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"flash_attn takes float16 and bfloat16 only, not {value.dtype}: it needs training.precision=bf16-mixed"
                " or 16-mixed"
            )
        window = -1 if self.window_size is None else self.window_size
        q, k, v = (tensor.to(value.dtype).transpose(1, 2) for tensor in (query, key, value))  # [B, N, H, C]
        attended = flash_attn_func(q, k, v, softmax_scale=self.head_channels**-0.5, window_size=(window, window))
        return attended.transpose(1, 2)  # [B, H, N, C]
