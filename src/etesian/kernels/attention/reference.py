"""Attention as its formula reads: all scores are formed. The oracle of the other kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from etesian.kernels.attention.base import Attention


class ReferenceAttention(Attention):
    """Attention in plain PyTorch, any device and dtype; memory grows with the square of the number of nodes."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; see :data:`etesian.kernels.slots.ATTENTION_CALL`.

        Numbers of 16 bits are computed in float32; the result has the dtype of the value.
        """
        dtype = torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype
        with torch.autocast(value.device.type, enabled=False):
            q, k, v = (tensor.to(dtype) for tensor in (query, key, value))
            score = q @ k.mT / self.head_channels**0.5  # [B, H, N, N]
            if self.window_size is not None:
                position = torch.arange(q.shape[2], device=q.device)
                far = (position[:, None] - position).abs() > self.window_size  # [N, N]
                score = score.masked_fill(far, -torch.inf)
            return (score.softmax(-1) @ v).to(value.dtype)
