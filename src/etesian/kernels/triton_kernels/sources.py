"""Backward over source nodes: the gradients of keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_block,
    load_rows,
    load_tile,
    multiply,
    place_of,
    store_rows,
    tiles_of,
)


@triton.jit
def sources_kernel(
    kept, query, grad,
    nodes, tiles, slots, edges,
    key_grad, value_grad,
    num_edges, blocks, query_stride, grad_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr, HEADS_FIRST: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``sum dS q`` and ``sum alpha g`` over the edges that leave each source, [N_src, H, C] each.

    Programs: blocks of source nodes times heads. The destinations are in the slots.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    channel = tl.arange(0, CHANNEL_BLOCK)
    of_key = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    of_value = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    kept += head * num_edges * 2
    first, last = tiles_of(tiles, block)
    for tile in range(first, last):
        other, edge = load_tile(slots, edges, tile, ROWS)
        q = load_rows(query, other, query_stride, head, channel, CHANNELS)
        g = load_rows(grad, other, grad_stride, head, channel, CHANNELS)
        of_edge = kept + edge.to(tl.int64) * 2
        alpha = tl.load(of_edge, mask=edge >= 0, other=0.0)
        ds = tl.load(of_edge + 1, mask=edge >= 0, other=0.0)
        of_key += multiply(ds.to(q.dtype), q, WIDE, PRECISION)
        of_value += multiply(alpha.to(g.dtype), g, WIDE, PRECISION)
    node = load_block(nodes, block, ROWS)
    store_rows(key_grad, of_key, node, head, channel, HEADS, CHANNELS)
    store_rows(value_grad, of_value, node, head, channel, HEADS, CHANNELS)
