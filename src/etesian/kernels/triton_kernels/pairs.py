"""Products of two nodes for each edge."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_block, load_rows, load_tile, multiply, place_of, tiles_of


@triton.jit
def pairs_kernel(
    x, y,
    nodes, tiles, slots, edges, pointers,
    products,
    num_edges, blocks, x_stride, y_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr, HEADS_FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute ``scale x_i . y_j`` for each edge from j to i, [H, M]. Programs: blocks of destinations times heads."""
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    channel = tl.arange(0, CHANNEL_BLOCK)
    node = load_block(nodes, block, ROWS)
    x_rows = load_rows(x, node, x_stride, head, channel, CHANNELS)
    begin = tl.load(pointers + node, mask=node >= 0, other=0)
    products += head * num_edges
    first, last = tiles_of(tiles, block)
    for tile in range(first, last):
        other, edge = load_tile(slots, edges, tile, ROWS)
        y_rows = load_rows(y, other, y_stride, head, channel, CHANNELS)
        product = multiply(x_rows, tl.trans(y_rows), WIDE, PRECISION) * SCALE
        tl.store(products + (begin[:, None] + edge), product, mask=edge >= 0)
