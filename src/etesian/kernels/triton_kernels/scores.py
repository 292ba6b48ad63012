"""Forward, first part: scores of the edges, and the logarithm of the sum of their exponentials for each node."""

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
)


@triton.jit
def scores_kernel(
    query, key, attributes, weight,
    src, pointers,
    scores, normalisers,
    num_dst, num_edges, blocks, query_stride, key_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, FEATURES: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Compute ``scale (q . k + (q W) . a)`` of each edge, [H, M], and log2 of the sum of 2^score a node, [H, N_dst].

    Programs: blocks of nodes times heads. The softmax is taken to the base 2: `SCALE` holds log2(e) / sqrt(C). The
    maximum and the sum are updated edge by edge, a pair for each row, so that no score is read a second time.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, edge, stop, base, steps = rows_of(block, pointers, num_dst, ROWS, LANES)
    there = node < num_dst
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)

    projected = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for first in tl.static_range(0, CHANNELS, CHANNEL_BLOCK):
        q_narrow = load_rows(query, node, there, query_stride, head, first + channel, CHANNELS)
        w = load_weight(weight, head, (first + channel)[:, None], feature[None, :], CHANNELS, FEATURES, WIDE)
        projected += product(q_narrow, w, SPLIT)
    q = load_rows(query, node, there, query_stride, head, channel, CHANNELS).to(WIDE)

    highest = tl.full([ROWS], -float("inf"), dtype=WIDE)
    total = tl.zeros([ROWS], dtype=WIDE)
    src += base
    attributes += base * FEATURES
    scores += head * num_edges + base
    source = load_id(src, edge, stop)
    for _ in range(steps):
        valid = edge < stop
        later = edge + LANES
        next_source = load_id(src, later, stop)
        a = load_attributes(attributes, edge, valid, feature, FEATURES)
        k = load_rows(key, source, valid, key_stride, head, channel, CHANNELS)
        score = tl.sum(q * k.to(WIDE), axis=1)
        for first in tl.static_range(CHANNEL_BLOCK, CHANNELS, CHANNEL_BLOCK):  # of heads wider than a block
            more_q = load_rows(query, node, valid, query_stride, head, first + channel, CHANNELS)
            more_k = load_rows(key, source, valid, key_stride, head, first + channel, CHANNELS)
            score += tl.sum(more_q.to(WIDE) * more_k.to(WIDE), axis=1)
        score = (score + tl.sum(projected * a.to(WIDE), axis=1)) * SCALE
        tl.store(scores + edge, score, mask=valid)
        score = tl.where(valid, score, -float("inf"))
        before = highest
        highest = tl.maximum(before, score)
        level = tl.where(highest == -float("inf"), 0.0, highest)  # of rows without an edge as yet
        total = total * tl.exp2(before - level) + tl.exp2(score - level)
        edge, source = later, next_source

    if LANES > 1:
        by_lane = tl.reshape(highest, [ROWS // LANES, LANES])
        top = tl.max(by_lane, axis=1)
        level = tl.where(top == -float("inf"), 0.0, top)
        total = tl.sum(tl.reshape(total, [ROWS // LANES, LANES]) * tl.exp2(by_lane - level[:, None]), axis=1)
    else:
        level = tl.where(highest == -float("inf"), 0.0, highest)
    node, there = nodes_of(block, num_dst, ROWS, LANES)
    tl.store(normalisers + head * num_dst + node, level + tl.log2(tl.where(total > 0, total, 1.0)), mask=there)
