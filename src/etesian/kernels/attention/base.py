"""What the kernels of the slot ``Attention`` share: how they are built."""

from __future__ import annotations

from torch import nn


class Attention(nn.Module):
    """Attention of some number of heads; a kernel adds the call, :data:`etesian.kernels.slots.ATTENTION_CALL`.

    Parameters
    ----------
    num_heads, head_channels : int
        H and C.
    window_size : int or None
        How far a position sees to either side; None: everywhere.
    """

    def __init__(self, num_heads: int, head_channels: int, window_size: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.head_channels, self.window_size = num_heads, head_channels, window_size
