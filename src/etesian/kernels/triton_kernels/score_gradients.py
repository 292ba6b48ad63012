"""Backward, first part: alpha and the gradient of the scores, edge by edge."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import (
    load_attributes,
    load_rows,
    load_weight,
    place_of,
    product,
    rows_of,
    store_features,
)


@triton.jit
def score_gradients_kernel(
    grad, out, value, attributes, weight, bias, scores, normalisers,
    src, pointers,
    pairs, projected_grad,
    num_dst, num_edges, blocks, grad_stride, value_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr, STORE_PROJECTED: tl.constexpr,
):  # fmt: skip
    """Compute alpha and ``dS = alpha (g . v + (g W) . a - g . (out - b)) / sqrt(C)``, side by side: [H, M, 2].

    The last term is the mean of the first two under alpha, which costs no second walk over the edges this way. The
    product g W is kept for the gradient of the attributes, [N_dst, H, D].
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    there = node < num_dst
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)

    projected = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    mean = tl.zeros([ROWS], dtype=WIDE)
    for first in tl.static_range(0, CHANNELS, CHANNEL_BLOCK):
        g_narrow = load_rows(grad, node, there, grad_stride, head, first + channel, CHANNELS)
        w = load_weight(weight, head, (first + channel)[:, None], feature[None, :], CHANNELS, FEATURES, WIDE)
        projected += product(g_narrow, w, SPLIT)
        result = load_rows(out, node, there, HEADS * CHANNELS, head, first + channel, CHANNELS).to(WIDE)
        if BIAS:
            column = first + channel
            b = tl.load(bias + head * CHANNELS + column, mask=column < CHANNELS, other=0.0).to(WIDE)
            result -= b[None, :]
        mean += tl.sum(g_narrow.to(WIDE) * result, axis=1)
    if STORE_PROJECTED:
        once = there & (tl.arange(0, ROWS) % LANES == 0)
        store_features(projected_grad, projected, node, once, head, feature, HEADS, FEATURES)
    g = load_rows(grad, node, there, grad_stride, head, channel, CHANNELS).to(WIDE)
    normaliser = tl.load(normalisers + head * num_dst + node, mask=there, other=0.0)

    source = tl.load(src + edge, mask=edge < stop, other=0).to(tl.int64)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = tl.load(src + later, mask=later < stop, other=0).to(tl.int64)
        score = tl.load(scores + head * num_edges + edge, mask=valid, other=0.0)
        a = load_attributes(attributes, edge, valid, feature, FEATURES)
        v = load_rows(value, source, valid, value_stride, head, channel, CHANNELS)
        grad_alpha = tl.sum(g * v.to(WIDE), axis=1)
        for first in tl.static_range(CHANNEL_BLOCK, CHANNELS, CHANNEL_BLOCK):  # of heads wider than a block
            more_g = load_rows(grad, node, valid, grad_stride, head, first + channel, CHANNELS)
            more_v = load_rows(value, source, valid, value_stride, head, first + channel, CHANNELS)
            grad_alpha += tl.sum(more_g.to(WIDE) * more_v.to(WIDE), axis=1)
        grad_alpha += tl.sum(projected * a.to(WIDE), axis=1)
        alpha = tl.exp2(score - normaliser)
        pair = pairs + (head * num_edges + edge) * 2
        tl.store(pair, alpha, mask=valid)
        tl.store(pair + 1, alpha * (grad_alpha - mean) * SCALE, mask=valid)
        edge, source = later, next_source
