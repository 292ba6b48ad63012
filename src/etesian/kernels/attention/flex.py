"""Attention by FlexAttention, compiled on a GPU; a window skips what lies outside it in blocks.

What is skipped is told by a BlockMask. It is made from the window itself, at one entry for each pair of blocks; the
function of torch that makes one looks at every pair of positions.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from etesian.kernels.attention.base import Attention

BLOCK = 128
"""Positions in a block."""
_KEPT_MASKS = 16

_masks: dict[tuple[int, int, torch.device], BlockMask] = {}


class FlexAttention(Attention):
    """Attention by ``torch.nn.attention.flex_attention``.

    On a CPU it is not compiled, forms all scores, and has no backward pass.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; see :data:`etesian.kernels.slots.ATTENTION_CALL`. Queries and keys get the dtype of the value."""
        nodes, window = query.shape[2], self.window_size
        mask = None
        if window is not None and window < nodes - 1:
            mask = window_mask(nodes, window, query.device)
        attend = flex_attention if query.device.type == "cpu" or torch.compiler.is_compiling() else _compiled()
        return attend(query.to(value.dtype), key.to(value.dtype), value, block_mask=mask)


@functools.cache
def _compiled() -> Any:
    """Return the compiled function, one for the whole process: torch compiles it anew for each shape.

    After too many shapes (8, unless ``torch._dynamo.config`` says otherwise) torch raises; without `fullgraph` it would
    go on without the compiled kernel and form all scores.
    """
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def window_mask(nodes: int, window: int, device: torch.device) -> BlockMask:
    """Return the mask of a window; the last few made are kept, so all layers share one.

    Parameters
    ----------
    nodes : int
        Number of positions.
    window : int
        How far a position sees to either side.
    device : torch.device
        Where the mask is used.
    """
    if torch.compiler.is_compiling():
        return _window_mask(nodes, window, device)  # becomes part of the graph
    held = (nodes, window, device)
    if held not in _masks:
        while len(_masks) >= _KEPT_MASKS:
            _masks.pop(next(iter(_masks)))
        _masks[held] = _window_mask(nodes, window, device)
    return _masks[held]


def _window_mask(nodes: int, window: int, device: torch.device) -> BlockMask:
    count = -(-nodes // BLOCK)
    number = torch.arange(count, device=device, dtype=torch.int32)
    apart = (number[:, None] - number).abs()  # [blocks, blocks]
    touched = (apart - 1) * BLOCK + 1 <= window  # the nearest two positions of two blocks
    full = (apart + 1) * BLOCK - 1 <= window  # the farthest two
    whole = (number + 1) * BLOCK <= nodes
    full &= whole[:, None] & whole

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= window

    partial_count, partial_index = _listed(touched & ~full)
    full_count, full_index = _listed(full)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial_index,
        full_count,
        full_index,
        BLOCK_SIZE=BLOCK,
        mask_mod=near,
        seq_lengths=(nodes, nodes),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many columns of each row are chosen, [1, 1, blocks], and all columns with these first."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None].contiguous()
