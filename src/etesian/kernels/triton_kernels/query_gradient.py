"""Backward over destinations: the gradient of the query."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_features,
    load_id,
    load_rows,
    load_weight,
    nodes_of,
    place_of,
    rows_of,
    store_rows,
    sum_lanes,
    wide_product,
)


@triton.jit
def query_gradient_kernel(
    key, weight, pairs, means, by_ds,
    src, pointers,
    query_grad,
    num_dst, num_edges, blocks, key_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute ``sum dS k + W (sum dS a)``, [N_dst, H, C].

    Programs: blocks of nodes times heads, and blocks of channels on the second axis.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    mean = tl.load(means + head * num_dst + node, mask=node < num_dst, other=0.0)
    src += base
    pairs += (head * num_edges + base) * 2

    summed = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    source = load_id(src, edge, stop)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = load_id(src, later, stop)
        alpha = tl.load(pairs + edge * 2, mask=valid, other=0.0)
        ds = alpha * (tl.load(pairs + edge * 2 + 1, mask=valid, other=0.0) - mean) * SCALE
        k = load_rows(key, source, valid, key_stride, head, channel, CHANNELS)
        summed += ds[:, None] * k.to(WIDE)
        edge, source = later, next_source

    feature = tl.arange(0, FEATURE_BLOCK)
    once = (node < num_dst) & (tl.arange(0, ROWS) % LANES == 0)  # the sum of a node, in the first of its lanes
    ds_a = load_features(by_ds, node, once, head, feature, HEADS, FEATURES)
    w = load_weight(weight, head, channel[None, :], feature[:, None], CHANNELS, FEATURES, WIDE)
    result = sum_lanes(summed + wide_product(ds_a, w, SPLIT), ROWS, LANES, CHANNEL_BLOCK)
    owner, there = nodes_of(block, num_dst, ROWS, LANES)
    store_rows(query_grad, result, owner, there, head, channel, HEADS, CHANNELS)
