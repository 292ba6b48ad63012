"""What the kernels have in common: how a program's rows share out nodes and edges, and small exact products.

A program works on a tile of ROWS rows by the channels of one head. Of `ROWS` rows, `LANES` belong to each node; lane l
of a node takes its edges l, l + LANES, ... one after the other, and what the lanes of a node have summed up is added
at the end. One lane a node suits graphs whose nodes have few edges, as many each; many lanes suit nodes of many edges,
or of very different numbers of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def rows_of(block, pointers, num_nodes, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return for each row its node, its first edge and the end of the node's; where edges are counted from; steps.

    Edges are counted from the block's first, so that 32 bits hold their numbers: registers are what limits how many
    programs run side by side. Steps are what the row with the most edges takes. Rows behind the last node have none.
    """
    row = tl.arange(0, ROWS)
    node = block * (ROWS // LANES) + row // LANES
    there = node < num_nodes
    base = tl.load(pointers + block * (ROWS // LANES)).to(tl.int64)
    start = (tl.load(pointers + node, mask=there, other=0).to(tl.int64) - base).to(tl.int32)
    stop = (tl.load(pointers + node + 1, mask=there, other=0).to(tl.int64) - base).to(tl.int32)
    start, stop = tl.where(there, start, 0), tl.where(there, stop, 0)
    steps = tl.max((stop - start + LANES - 1) // LANES, axis=0)
    return node, start + row % LANES, stop, base, steps


@triton.jit
def load_id(ids, place, stop):
    """Load the ids at some places, 0 behind the end; of nodes and edges there are fewer than 2^31, however stored."""
    return tl.load(ids + place, mask=place < stop, other=0).to(tl.int32)


@triton.jit
def nodes_of(block, num_nodes, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return the nodes of a block, and which of them are there."""
    node = block * (ROWS // LANES) + tl.arange(0, ROWS // LANES)
    return node, node < num_nodes


@triton.jit
def sum_lanes(x, ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the sums over the lanes of each node, [ROWS / LANES, COLUMNS]."""
    if LANES > 1:
        x = tl.sum(tl.reshape(x, [ROWS // LANES, LANES, COLUMNS]), axis=1)
    return x


@triton.jit
def product(x, y, SPLIT: tl.constexpr):
    """Return ``x y`` of a narrow x [I, J] as it was loaded and a wide y [J, K], as exact as y's dtype allows.

    With `SPLIT`, x is bfloat16 and y float32: y is taken as the sum of two bfloat16 numbers, of 16 bits together, so
    that tensor cores multiply; what is lost is 2^-17 of y.
    """
    if SPLIT:
        high = y.to(tl.bfloat16)
        low = (y - high.to(tl.float32)).to(tl.bfloat16)
        result = tl.dot(x, high, tl.dot(x, low))
    else:
        result = tl.dot(x.to(y.dtype), y, input_precision="ieee", out_dtype=y.dtype)
    return result


@triton.jit
def wide_product(x, y, SPLIT: tl.constexpr):
    """Return ``x y`` of two wide tiles [I, J] and [J, K]; with `SPLIT` as in :func:`product`, x split likewise."""
    if SPLIT:
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
        result = product(high, y, True) + tl.dot(low, y.to(tl.bfloat16))
    else:
        result = tl.dot(x, y, input_precision="ieee", out_dtype=y.dtype)
    return result


@triton.jit
def load_rows(x, node, there, stride, head, column, CHANNELS: tl.constexpr):
    """Load the channels of a head of some nodes, 0 where they are not there; [nodes, columns], as stored."""
    mask = there[:, None] & (column < CHANNELS)[None, :]
    return tl.load(x + node[:, None].to(tl.int64) * stride + (head * CHANNELS + column)[None, :], mask=mask, other=0.0)


@triton.jit
def load_weight(
    weight, head, channel, feature, CHANNELS: tl.constexpr, FEATURES: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Load the edge weight of a head, [channels, features]; the arguments have those two axes already."""
    mask = (channel < CHANNELS) & (feature < FEATURES)
    return tl.load(weight + (head * CHANNELS + channel) * FEATURES + feature, mask=mask, other=0.0).to(WIDE)


@triton.jit
def load_features(x, node, there, head, feature, HEADS: tl.constexpr, FEATURES: tl.constexpr):
    """Load D numbers of a head of some nodes from [N, H, D], 0 where they are not there; [nodes, features]."""
    mask = there[:, None] & (feature < FEATURES)[None, :]
    return tl.load(x + (node[:, None].to(tl.int64) * HEADS + head) * FEATURES + feature[None, :], mask=mask, other=0.0)


@triton.jit
def store_features(x, values, node, there, head, feature, HEADS: tl.constexpr, FEATURES: tl.constexpr):
    """Store D numbers of a head of some nodes into [N, H, D]."""
    mask = there[:, None] & (feature < FEATURES)[None, :]
    tl.store(x + (node[:, None] * HEADS + head) * FEATURES + feature[None, :], values, mask=mask)


@triton.jit
def load_attributes(attributes, edge, valid, feature, FEATURES: tl.constexpr):
    """Load the attributes of some edges, 0 where they are not there; [edges, features], as stored."""
    mask = valid[:, None] & (feature < FEATURES)[None, :]
    return tl.load(attributes + edge[:, None] * FEATURES + feature[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(x, values, node, there, head, column, HEADS: tl.constexpr, CHANNELS: tl.constexpr):
    """Store the channels of a head of some nodes into [N, H, C]."""
    mask = there[:, None] & (column < CHANNELS)[None, :]
    place = (node[:, None] * HEADS + head) * CHANNELS + column[None, :]
    tl.store(x + place, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def which_have_edges(pointers, node, there):
    """Tell of each node whether an edge is listed for it."""
    first = tl.load(pointers + node, mask=there, other=0)
    return tl.load(pointers + node + 1, mask=there, other=0) > first
