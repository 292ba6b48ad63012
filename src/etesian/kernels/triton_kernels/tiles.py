"""What the kernels have in common: where a program works, loads and stores of rows, products on matrix units.

The kernels over tiles work on one head of one block of nodes, 16 nodes at the other ends of edges at a time
(:mod:`etesian.graph.tiles`): products of rows x C with C x 16 numbers, or of rows x 16 with 16 x C. The kernels over
nodes work on the edges into one node, all heads at a time: products of H x D with D x edges numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOTS = tl.constexpr(16)
"""Slots of a tile, as :data:`etesian.graph.tiles.SLOTS`."""


@triton.jit
def place_of(index, blocks, HEADS: tl.constexpr, HEADS_FIRST: tl.constexpr):
    """Return block of nodes and head of a program.

    With the heads first, the programs of a block run side by side, and rows of all heads are fetched together; else
    all blocks of one head run before the next head, whose keys and values may then stay in a cache.
    """
    if HEADS_FIRST:
        block, head = index // HEADS, index % HEADS
    else:
        block, head = index % blocks, index // blocks
    return block.to(tl.int64), head.to(tl.int64)


@triton.jit
def tiles_of(tiles, block):
    """Return the first tile of a block and that behind its last."""
    return tl.load(tiles + block).to(tl.int64), tl.load(tiles + block + 1).to(tl.int64)


@triton.jit
def load_block(nodes, block, ROWS: tl.constexpr):
    """Load the numbers of the nodes of a block; -1 stands for none."""
    return tl.load(nodes + block * ROWS + tl.arange(0, ROWS))


@triton.jit
def load_tile(slots, edges, tile, ROWS: tl.constexpr):
    """Load of a tile the nodes in the slots, and what stands for the edges [rows, slots]; -1 stands for none."""
    row, slot = tl.arange(0, ROWS), tl.arange(0, SLOTS)
    edge = tl.load(edges + tile * (ROWS * SLOTS) + row[:, None] * SLOTS + slot[None, :]).to(tl.int32)
    return tl.load(slots + tile * SLOTS + slot), edge


@triton.jit
def load_rows(x, node, stride, head, column, COLUMNS: tl.constexpr):
    """Load the columns of a head of some nodes, 0 where there is none; [nodes, columns], as stored."""
    mask = (node >= 0)[:, None] & (column < COLUMNS)[None, :]
    place = node[:, None].to(tl.int64) * stride + (head * COLUMNS + column)[None, :]
    return tl.load(x + place, mask=mask, other=0.0)


@triton.jit
def store_rows(x, values, node, head, column, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store the columns of a head of some nodes into [N, H, columns]."""
    mask = (node >= 0)[:, None] & (column < COLUMNS)[None, :]
    place = (node[:, None].to(tl.int64) * HEADS + head) * COLUMNS + column[None, :]
    tl.store(x + place, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_weight(weight, head, channel, feature, CHANNELS: tl.constexpr, FEATURE_BLOCK: tl.constexpr):
    """Load the edge weight of a head from [H, D with zeros behind, C], [features, channels]."""
    place = (head * FEATURE_BLOCK + feature[:, None]) * CHANNELS + channel[None, :]
    return tl.load(weight + place, mask=(channel < CHANNELS)[None, :], other=0.0)


@triton.jit
def load_heads(x, node, head, column, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load all heads of a node from [N, H, columns], [heads, columns]."""
    place = node * HEADS * COLUMNS + head[:, None] * COLUMNS + column[None, :]
    return tl.load(x + place, mask=(head < HEADS)[:, None], other=0.0)


@triton.jit
def store_heads(x, values, node, head, column, HEADS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store all heads of a node into [N, H, columns]."""
    place = node * HEADS * COLUMNS + head[:, None] * COLUMNS + column[None, :]
    tl.store(x + place, values.to(x.dtype.element_ty), mask=(head < HEADS)[:, None])


@triton.jit
def load_attributes(attributes, edge, end, feature, FEATURE_BLOCK: tl.constexpr):
    """Load the attributes of some edges from [M, D with zeros behind], 0 behind the last edge, [edges, features]."""
    place = edge[:, None].to(tl.int64) * FEATURE_BLOCK + feature[None, :]
    return tl.load(attributes + place, mask=(edge < end)[:, None], other=0.0)


@triton.jit
def store_pairs(kept, place, x, y, mask):
    """Store x and y of some edges side by side into [H, M, 2]."""
    both = tl.join(x, y).to(kept.dtype.element_ty)
    tl.store((kept + place * 2)[:, :, None] + tl.arange(0, 2)[None, None, :], both, mask=mask[:, :, None])


@triton.jit
def multiply(x, y, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Return ``x y``, added up in `WIDE`; numbers of 16 bits as they are, if both are of one kind, else as `WIDE`."""
    if x.dtype != y.dtype:
        x, y = x.to(WIDE), y.to(WIDE)
    return tl.dot(x, y, input_precision=PRECISION, out_dtype=WIDE)
