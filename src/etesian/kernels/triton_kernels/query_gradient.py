"""Backward over destinations: the gradient of the query, and the sums of attributes that the weight's gradient needs."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_attributes,
    load_rows,
    load_weight,
    nodes_of,
    place_of,
    rows_of,
    store_features,
    store_rows,
    sum_lanes,
    wide_product,
)


@triton.jit
def query_gradient_kernel(
    key, attributes, weight, pairs, means,
    src, pointers,
    query_grad, by_alpha, by_ds,
    num_dst, num_edges, blocks, key_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr, STORE_SUMS: tl.constexpr,
):  # fmt: skip
    """Compute ``sum dS k + W (sum dS a)``, [N_dst, H, C]; keep ``sum alpha a`` and ``sum dS a``, [N_dst, H, D] each.

    Programs: blocks of nodes times heads, and blocks of channels on the second axis.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    feature = tl.arange(0, FEATURE_BLOCK)

    mean = tl.load(means + head * num_dst + node, mask=node < num_dst, other=0.0)

    summed = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    summed_by_ds = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    summed_by_alpha = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    source = tl.load(src + edge, mask=edge < stop, other=0).to(tl.int64)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = tl.load(src + later, mask=later < stop, other=0).to(tl.int64)
        pair = pairs + (head * num_edges + edge) * 2
        alpha = tl.load(pair, mask=valid, other=0.0)
        ds = alpha * (tl.load(pair + 1, mask=valid, other=0.0) - mean) * SCALE
        a = load_attributes(attributes, edge, valid, feature, FEATURES).to(WIDE)
        k = load_rows(key, source, valid, key_stride, head, channel, CHANNELS)
        summed += ds[:, None] * k.to(WIDE)
        summed_by_ds += ds[:, None] * a
        if STORE_SUMS:
            summed_by_alpha += alpha[:, None] * a
        edge, source = later, next_source

    w = load_weight(weight, head, channel[None, :], feature[:, None], CHANNELS, FEATURES, WIDE)
    result = sum_lanes(summed + wide_product(summed_by_ds, w, SPLIT), ROWS, LANES, CHANNEL_BLOCK)
    node, there = nodes_of(block, num_dst, ROWS, LANES)
    store_rows(query_grad, result, node, there, head, channel, HEADS, CHANNELS)
    if STORE_SUMS:
        there &= tl.program_id(1) == 0
        alpha_a = sum_lanes(summed_by_alpha, ROWS, LANES, FEATURE_BLOCK)
        store_features(by_alpha, alpha_a, node, there, head, feature, HEADS, FEATURES)
        ds_a = sum_lanes(summed_by_ds, ROWS, LANES, FEATURE_BLOCK)
        store_features(by_ds, ds_a, node, there, head, feature, HEADS, FEATURES)
