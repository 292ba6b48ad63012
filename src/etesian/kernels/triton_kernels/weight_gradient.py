"""Backward, small products: parts of the gradients of edge weight and bias, and q W for that of the attributes."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_features,
    load_rows,
    load_weight,
    product,
    store_features,
    which_have_edges,
)


@triton.jit
def weight_gradient_kernel(
    query, grad, weight, by_alpha, by_ds, pointers,
    weight_parts, bias_parts, projected_query,
    num_dst, nodes_a_part, query_stride, grad_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, PROJECT: tl.constexpr,
):  # fmt: skip
    """Compute for one part of the nodes and one head what a sum over the parts makes gradients.

    Of the weight, ``sum g (sum alpha a) + sum q (sum dS a)``, [parts, H, C, D]; of the bias, the sum of g over the
    nodes that have an edge, [parts, H, C]. With `PROJECT`, q W of every node too, [N_dst, H, D], while q is at hand:
    only where one block holds all channels. Programs: heads, parts, blocks of channels.
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    feature = tl.arange(0, FEATURE_BLOCK)
    begin = part * nodes_a_part
    end = tl.minimum(begin + nodes_a_part, num_dst)
    of_weight = tl.zeros([CHANNEL_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    of_bias = tl.zeros([CHANNEL_BLOCK], dtype=WIDE)
    w = load_weight(weight, head, column[:, None], feature[None, :], CHANNELS, FEATURES, WIDE)
    for start in range(0, nodes_a_part, ROWS):
        node = begin + start + tl.arange(0, ROWS)
        there = node < end
        q = load_rows(query, node, there, query_stride, head, column, CHANNELS)
        g = load_rows(grad, node, there, grad_stride, head, column, CHANNELS)
        alpha_a = load_features(by_alpha, node, there, head, feature, HEADS, FEATURES)
        ds_a = load_features(by_ds, node, there, head, feature, HEADS, FEATURES)
        of_weight += product(tl.trans(g), alpha_a, SPLIT) + product(tl.trans(q), ds_a, SPLIT)
        has_edges = which_have_edges(pointers, node, there)
        of_bias += tl.sum(tl.where(has_edges[:, None], g.to(WIDE), 0.0), axis=0)
        if PROJECT:
            store_features(projected_query, product(q, w, SPLIT), node, there, head, feature, HEADS, FEATURES)
    place = (part * HEADS + head) * CHANNELS + column
    inside = column < CHANNELS
    tl.store(bias_parts + place, of_bias, mask=inside)
    mask = inside[:, None] & (feature < FEATURES)[None, :]
    tl.store(weight_parts + place[:, None] * FEATURES + feature[None, :], of_weight, mask=mask)
