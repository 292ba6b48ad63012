"""Backward: the gradients of edge weight and bias."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_rows, multiply, place_of


@triton.jit
def weights_kernel(
    grad, query, by_alpha, by_ds, pointers,
    weight_parts, bias_parts,
    num_dst, parts, nodes_a_part, grad_stride, query_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, NODES: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute for one part of the destination nodes and one head what a sum over the parts makes gradients.

    Of the weight, ``sum g (sum alpha a) + sum q (sum dS a)``, [parts, H, C, D]; of the bias, the sum of g over the
    nodes that have an edge, [parts, H, C]. Programs: parts times heads, and blocks of
    channels on the second axis.
    """
    part, head = place_of(tl.program_id(0), parts, HEADS, True)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    feature = tl.arange(0, FEATURE_BLOCK)
    of_weight = tl.zeros([CHANNEL_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    of_bias = tl.zeros([CHANNEL_BLOCK, FEATURE_BLOCK], dtype=WIDE)  # in the first column; a product, as the others are
    end = tl.minimum((part + 1) * nodes_a_part, num_dst)
    for first in range(part * nodes_a_part, end, NODES):
        node = first + tl.arange(0, NODES)
        there = node < end
        node = tl.where(there, node, -1)
        q = load_rows(query, node, query_stride, head, channel, CHANNELS)
        g = load_rows(grad, node, grad_stride, head, channel, CHANNELS)
        alpha_a = load_rows(by_alpha, node, HEADS * FEATURE_BLOCK, head, feature, FEATURE_BLOCK)
        ds_a = load_rows(by_ds, node, HEADS * FEATURE_BLOCK, head, feature, FEATURE_BLOCK)
        of_weight += multiply(tl.trans(g), alpha_a, WIDE, PRECISION)
        of_weight += multiply(tl.trans(q), ds_a, WIDE, PRECISION)
        begin = tl.load(pointers + node, mask=there, other=0)
        has_edges = tl.load(pointers + node + 1, mask=there, other=0) > begin
        counted = tl.where(has_edges[:, None] & (feature == 0)[None, :], 1.0, 0.0).to(g.dtype)
        of_bias += multiply(tl.trans(g), counted, WIDE, PRECISION)
    place = (part * HEADS + head) * CHANNELS + channel
    tl.store(bias_parts + place, tl.sum(of_bias, axis=1), mask=channel < CHANNELS)
    mask = (channel < CHANNELS)[:, None] & (feature < FEATURES)[None, :]
    tl.store(weight_parts + place[:, None] * FEATURES + feature[None, :], of_weight, mask=mask)
