"""Weighted sums over the edges into each node."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_block,
    load_rows,
    load_tile,
    load_weight,
    multiply,
    place_of,
    store_rows,
    tiles_of,
)


@triton.jit
def sums_kernel(
    factors, y, sums_of_attributes, weight, bias,
    nodes, tiles, slots, edges, pointers,
    out,
    num_edges, blocks, y_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, HEADS_FIRST: tl.constexpr, ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Compute ``sum f y_j + W (sum f a) + b`` for factors f of the edges from j to i, the bias where i has an edge.

    [N_dst, H, C]; the sums of the attributes are given. The factors are the last of [H, M, STRIDE] numbers.
    Programs: blocks of destinations times heads.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)
    node = load_block(nodes, block, ROWS)
    of_attributes = load_rows(sums_of_attributes, node, HEADS * FEATURE_BLOCK, head, feature, FEATURE_BLOCK)
    w = load_weight(weight, head, channel, feature, CHANNELS, FEATURE_BLOCK)
    summed = multiply(of_attributes, w, WIDE, PRECISION)
    begin = tl.load(pointers + node, mask=node >= 0, other=0)
    factors += head * num_edges * STRIDE + (STRIDE - 1)
    first, last = tiles_of(tiles, block)
    for tile in range(first, last):
        other, edge = load_tile(slots, edges, tile, ROWS)
        rows = load_rows(y, other, y_stride, head, channel, CHANNELS)
        factor = tl.load(factors + (begin[:, None] + edge).to(tl.int64) * STRIDE, mask=edge >= 0, other=0.0)
        summed += multiply(factor.to(rows.dtype), rows, WIDE, PRECISION)
    if BIAS:
        b = tl.load(bias + head * CHANNELS + channel, mask=channel < CHANNELS, other=0.0).to(WIDE)
        end = tl.load(pointers + node + 1, mask=node >= 0, other=0)
        summed += tl.where((end > begin)[:, None], b[None, :], 0.0)
    store_rows(out, summed, node, head, channel, HEADS, CHANNELS)
