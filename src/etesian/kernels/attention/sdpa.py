"""Attention by ``torch.nn.functional.scaled_dot_product_attention``; any device: the default.

Without a window there is no mask, so torch may choose its fastest kernel. With a window of w the N positions are cut
into blocks of b: a block of queries sees its own positions and w more on either side, a band of b + 2 w keys, and all
blocks but those at the two ends see their bands alike. Those in the middle are one call with one mask of
b x (b + 2 w), the ends one call each. A window so wide that such a mask would be large takes a call for each block. So
nothing of the size N x N exists, and the work grows with N w.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from etesian.kernels.attention.base import Attention

SMALLEST_BLOCK = 64
"""Queries in a block, if the window is not larger: fewer would be more work for the device than they save."""
LARGEST_BLOCK = 1024
"""The widest window that is also the number of queries in a block; beyond, this is the number."""


class ScaledDotProductAttention(Attention):
    """Attention by torch's own function."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; see :data:`etesian.kernels.slots.ATTENTION_CALL`."""
        nodes, window = query.shape[2], self.window_size
        if window is None or window >= nodes - 1:
            return scaled_dot_product_attention(query, key, value)
        if window > LARGEST_BLOCK:
            return _block_by_block(query, key, value, window, LARGEST_BLOCK)
        block = max(window, SMALLEST_BLOCK)
        if nodes <= 2 * block + window:  # no block would be in the middle
            return scaled_dot_product_attention(query, key, value, attn_mask=_near(0, nodes, 0, nodes, window, query))
        return _in_blocks(query, key, value, window, block)


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, window: int, block: int) -> Tensor:
    """Attend within the window; see the head of this module. Needs N > 2 b + w and b >= w."""
    nodes = query.shape[2]
    count = (nodes - window - block) // block  # blocks in the middle: from position b on, their bands inside [0, N)
    stop = block + count * block  # first position of the end
    first = scaled_dot_product_attention(
        query[:, :, :block],
        key[:, :, : block + window],
        value[:, :, : block + window],
        attn_mask=_near(0, block, 0, block + window, window, query),
    )
    middle = scaled_dot_product_attention(
        _windows(query[:, :, block:stop], block, block),
        _windows(key[:, :, block - window : stop + window], block + 2 * window, block),
        _windows(value[:, :, block - window : stop + window], block + 2 * window, block),
        attn_mask=_near(window, block, 0, block + 2 * window, window, query),
    )  # [(B count), H, b, C]
    middle = middle.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3)  # [B, H, count b, C]
    last = scaled_dot_product_attention(
        query[:, :, stop:],
        key[:, :, stop - window :],
        value[:, :, stop - window :],
        attn_mask=_near(window, nodes - stop, 0, nodes - stop + window, window, query),
    )
    return torch.cat([first, middle, last], dim=2)


def _block_by_block(query: Tensor, key: Tensor, value: Tensor, window: int, block: int) -> Tensor:
    """Attend within the window, a call for each block of queries."""
    nodes, attended = query.shape[2], []
    for start in range(0, nodes, block):
        stop = min(start + block, nodes)
        first, end = max(0, start - window), min(stop + window, nodes)
        mask = _near(start, stop - start, first, end - first, window, query)
        band = (key[:, :, first:end], value[:, :, first:end])
        attended.append(scaled_dot_product_attention(query[:, :, start:stop], *band, attn_mask=mask))
    return torch.cat(attended, dim=2)


def _windows(x: Tensor, size: int, step: int) -> Tensor:
    """Return stretches of `size` positions, one every `step`: [B, H, N, C] to [(B count), H, size, C]."""
    return x.unfold(2, size, step).permute(0, 2, 1, 4, 3).flatten(0, 1)


def _near(first_query: int, queries: int, first_key: int, keys: int, window: int, like: Tensor) -> Tensor:
    """Return which keys each query sees, bool [queries, keys], given the positions of the first of each."""
    query = torch.arange(first_query, first_query + queries, device=like.device)
    key = torch.arange(first_key, first_key + keys, device=like.device)
    return (query[:, None] - key).abs() <= window
