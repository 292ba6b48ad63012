"""Backward, small products: q W by itself, where the gradient of the edge weight does not compute it along the way."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_rows, load_weight, product, store_features


@triton.jit
def projections_kernel(
    query, weight,
    projected,
    num_nodes, query_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute q W a head, [N, H, D]. Programs: blocks of nodes times heads."""
    head, block = (tl.program_id(0) % HEADS).to(tl.int64), (tl.program_id(0) // HEADS).to(tl.int64)
    node = block * ROWS + tl.arange(0, ROWS)
    there = node < num_nodes
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)
    summed = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for first in tl.static_range(0, CHANNELS, CHANNEL_BLOCK):
        q = load_rows(query, node, there, query_stride, head, first + channel, CHANNELS)
        w = load_weight(weight, head, (first + channel)[:, None], feature[None, :], CHANNELS, FEATURES, WIDE)
        summed += product(q, w, SPLIT)
    store_features(projected, summed, node, there, head, feature, HEADS, FEATURES)
