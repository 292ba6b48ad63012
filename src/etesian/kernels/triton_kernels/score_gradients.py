"""Backward, first part: alpha and its gradient, edge by edge, and the mean of that gradient for each node."""

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
    product,
    rows_of,
    store_features,
)


@triton.jit
def score_gradients_kernel(
    grad, value, attributes, weight, scores, normalisers,
    src, pointers,
    pairs, means, projected_grad,
    num_dst, num_edges, blocks, grad_stride, value_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, STORE_PROJECTED: tl.constexpr,
):  # fmt: skip
    """Compute alpha and its gradient ``g . v + (g W) . a``, [H, M, 2], and the sum of their products, [H, N_dst].

    That sum is the mean of the gradient under alpha. What the scores' gradient is made of,
    ``dS = alpha (gradient - mean) / sqrt(C)``, is only known when a node's last edge is, so it is left to the kernels
    that read these three. (The mean is g . (out - b) too, but the output is rounded: an error as large as all others
    together.) The product g W is kept for the gradient of the attributes, [N_dst, H, D]. Of g . b, the same for all
    edges into a node, nothing is left in dS.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    there = node < num_dst
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)

    projected = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    mean = tl.zeros([ROWS], dtype=WIDE)
    for first in tl.static_range(0, CHANNELS, CHANNEL_BLOCK):
        g_narrow = load_rows(grad, node, there, grad_stride, head, first + channel, CHANNELS)
        w = load_weight(weight, head, (first + channel)[:, None], feature[None, :], CHANNELS, FEATURES, WIDE)
        projected += product(g_narrow, w, SPLIT)
    if STORE_PROJECTED:
        once = there & (tl.arange(0, ROWS) % LANES == 0)
        store_features(projected_grad, projected, node, once, head, feature, HEADS, FEATURES)
    g = load_rows(grad, node, there, grad_stride, head, channel, CHANNELS).to(WIDE)
    normaliser = tl.load(normalisers + head * num_dst + node, mask=there, other=0.0)

    src += base
    attributes += base * FEATURES
    scores += head * num_edges + base
    pairs += (head * num_edges + base) * 2
    source = load_id(src, edge, stop)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = load_id(src, later, stop)
        score = tl.load(scores + edge, mask=valid, other=0.0)
        a = load_attributes(attributes, edge, valid, feature, FEATURES)
        v = load_rows(value, source, valid, value_stride, head, channel, CHANNELS)
        grad_alpha = tl.sum(g * v.to(WIDE), axis=1)
        for first in tl.static_range(CHANNEL_BLOCK, CHANNELS, CHANNEL_BLOCK):  # of heads wider than a block
            more_g = load_rows(grad, node, valid, grad_stride, head, first + channel, CHANNELS)
            more_v = load_rows(value, source, valid, value_stride, head, first + channel, CHANNELS)
            grad_alpha += tl.sum(more_g.to(WIDE) * more_v.to(WIDE), axis=1)
        grad_alpha += tl.sum(projected * a.to(WIDE), axis=1)
        alpha = tl.exp2(score - normaliser)
        tl.store(pairs + edge * 2, alpha, mask=valid)
        tl.store(pairs + edge * 2 + 1, grad_alpha, mask=valid)
        mean += tl.where(valid, alpha * grad_alpha, 0.0)
        edge, source = later, next_source

    if LANES > 1:
        mean = tl.sum(tl.reshape(mean, [ROWS // LANES, LANES]), axis=1)
    node, there = nodes_of(block, num_dst, ROWS, LANES)
    tl.store(means + head * num_dst + node, mean, mask=there)
