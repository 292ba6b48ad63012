"""Backward over destinations: the sums of edge attributes that the gradients of query and edge weight need."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_attributes,
    nodes_of,
    place_of,
    rows_of,
    store_features,
    sum_lanes,
)


@triton.jit
def attribute_sums_kernel(
    attributes, pairs, means,
    pointers,
    by_alpha, by_ds,
    num_dst, num_edges, blocks,
    HEADS: tl.constexpr, FEATURES: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, STORE_BY_ALPHA: tl.constexpr,
):  # fmt: skip
    """Compute ``sum dS a`` and, for the weight, ``sum alpha a`` over the edges into each node, [N_dst, H, D] each.

    Programs: blocks of nodes times heads.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    feature = tl.arange(0, FEATURE_BLOCK)
    mean = tl.load(means + head * num_dst + node, mask=node < num_dst, other=0.0)
    attributes += base * FEATURES
    pairs += (head * num_edges + base) * 2

    summed_by_ds = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    summed_by_alpha = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for _ in range(steps):
        valid = edge < stop
        alpha = tl.load(pairs + edge * 2, mask=valid, other=0.0)
        ds = alpha * (tl.load(pairs + edge * 2 + 1, mask=valid, other=0.0) - mean) * SCALE
        a = load_attributes(attributes, edge, valid, feature, FEATURES).to(WIDE)
        summed_by_ds += ds[:, None] * a
        if STORE_BY_ALPHA:
            summed_by_alpha += alpha[:, None] * a
        edge += LANES

    owner, there = nodes_of(block, num_dst, ROWS, LANES)
    of_ds = sum_lanes(summed_by_ds, ROWS, LANES, FEATURE_BLOCK)
    store_features(by_ds, of_ds, owner, there, head, feature, HEADS, FEATURES)
    if STORE_BY_ALPHA:
        of_alpha = sum_lanes(summed_by_alpha, ROWS, LANES, FEATURE_BLOCK)
        store_features(by_alpha, of_alpha, owner, there, head, feature, HEADS, FEATURES)
