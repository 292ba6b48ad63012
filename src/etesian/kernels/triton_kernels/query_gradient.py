"""Backward over destinations: the gradient of the query, and sums of attributes for the weight's gradient."""

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

    Programs: blocks of nodes times heads, and blocks of channels on the second axis. The edges are walked over twice,
    as for the outputs.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    feature = tl.arange(0, FEATURE_BLOCK)
    mean = tl.load(means + head * num_dst + node, mask=node < num_dst, other=0.0)
    owner, there = nodes_of(block, num_dst, ROWS, LANES)
    src += base
    attributes += base * FEATURES
    pairs += (head * num_edges + base) * 2

    summed_by_ds = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    summed_by_alpha = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for step in range(steps):
        place = edge + step * LANES
        valid = place < stop
        alpha = tl.load(pairs + place * 2, mask=valid, other=0.0)
        ds = alpha * (tl.load(pairs + place * 2 + 1, mask=valid, other=0.0) - mean) * SCALE
        a = load_attributes(attributes, place, valid, feature, FEATURES).to(WIDE)
        summed_by_ds += ds[:, None] * a
        if STORE_SUMS:
            summed_by_alpha += alpha[:, None] * a
    if STORE_SUMS:
        first = there & (tl.program_id(1) == 0)
        alpha_a = sum_lanes(summed_by_alpha, ROWS, LANES, FEATURE_BLOCK)
        store_features(by_alpha, alpha_a, owner, first, head, feature, HEADS, FEATURES)
        ds_a = sum_lanes(summed_by_ds, ROWS, LANES, FEATURE_BLOCK)
        store_features(by_ds, ds_a, owner, first, head, feature, HEADS, FEATURES)
    w = load_weight(weight, head, channel[None, :], feature[:, None], CHANNELS, FEATURES, WIDE)
    of_edges = wide_product(summed_by_ds, w, SPLIT)

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

    result = sum_lanes(summed + of_edges, ROWS, LANES, CHANNEL_BLOCK)
    store_rows(query_grad, result, owner, there, head, channel, HEADS, CHANNELS)
