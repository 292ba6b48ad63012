"""Forward, second part: the weighted sums of the values into each destination node."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_attributes,
    load_id,
    load_rows,
    load_weight,
    nodes_of,
    place_of,
    rows_of,
    store_rows,
    sum_lanes,
    which_have_edges,
    wide_product,
)


@triton.jit
def outputs_kernel(
    value, attributes, weight, bias, scores, normalisers,
    src, pointers,
    out,
    num_dst, num_edges, blocks, value_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Compute ``sum alpha v + W (sum alpha a) + b``, the bias where a node has an edge; [N_dst, H, C].

    Programs: blocks of nodes times heads, and blocks of channels on the second axis. The edges are walked over twice,
    for attributes and for values: tiles of both in one loop would be more than the registers hold.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    feature = tl.arange(0, FEATURE_BLOCK)
    normaliser = tl.load(normalisers + head * num_dst + node, mask=node < num_dst, other=0.0)
    src += base
    attributes += base * FEATURES
    scores += head * num_edges + base

    summed_a = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for step in range(steps):
        place = edge + step * LANES
        valid = place < stop
        alpha = tl.exp2(tl.load(scores + place, mask=valid, other=-float("inf")) - normaliser)
        a = load_attributes(attributes, place, valid, feature, FEATURES)
        summed_a += alpha[:, None] * a.to(WIDE)

    summed = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    source = load_id(src, edge, stop)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = load_id(src, later, stop)
        alpha = tl.exp2(tl.load(scores + edge, mask=valid, other=-float("inf")) - normaliser)
        v = load_rows(value, source, valid, value_stride, head, channel, CHANNELS)
        summed += alpha[:, None] * v.to(WIDE)
        edge, source = later, next_source

    w = load_weight(weight, head, channel[None, :], feature[:, None], CHANNELS, FEATURES, WIDE)
    result = sum_lanes(summed + wide_product(summed_a, w, SPLIT), ROWS, LANES, CHANNEL_BLOCK)
    node, there = nodes_of(block, num_dst, ROWS, LANES)
    if BIAS:
        b = tl.load(bias + head * CHANNELS + channel, mask=channel < CHANNELS, other=0.0).to(WIDE)
        result += tl.where(which_have_edges(pointers, node, there)[:, None], b[None, :], 0.0)
    store_rows(out, result, node, there, head, channel, HEADS, CHANNELS)
