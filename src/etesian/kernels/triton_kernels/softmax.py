"""Forward over the edges into each node: the softmax, and the sums of the edge attributes."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_attributes, load_heads, multiply, store_heads


@triton.jit
def softmax_kernel(
    scores, projected, attributes, pointers,
    sums,
    num_edges,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, EDGES: tl.constexpr,
    ONCE: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Make alpha of scores, [H, M], in place, and ``sum alpha a``, [N_dst, H, D with zeros behind].

    ``scale (q W) . a`` is added to each score first. The softmax is taken to the base 2: `SCALE` and the scores hold
    log2(e) / sqrt(C). Programs: destination nodes; `EDGES` edges at a time, those of a node of more edges twice;
    with `ONCE` no node has more.
    """
    node = tl.program_id(0).to(tl.int64)
    head, feature, number = tl.arange(0, HEAD_BLOCK), tl.arange(0, FEATURE_BLOCK), tl.arange(0, EDGES)
    begin, end = tl.load(pointers + node), tl.load(pointers + node + 1)
    q = load_heads(projected, node, head, feature, HEADS, FEATURE_BLOCK)
    of_head = scores + head[:, None].to(tl.int64) * num_edges
    there = (head < HEADS)[:, None]
    summed = tl.zeros([HEAD_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    if ONCE or end - begin <= EDGES:
        edge = begin + number
        mask = there & (edge < end)[None, :]
        a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
        score = tl.load(of_head + edge[None, :], mask=mask, other=-float("inf"))
        score += multiply(q, tl.trans(a), WIDE, PRECISION) * SCALE
        highest = tl.max(score, axis=1)
        alpha = tl.exp2(score - tl.where(highest == -float("inf"), 0.0, highest)[:, None])
        total = tl.sum(alpha, axis=1)
        alpha = alpha / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(of_head + edge[None, :], alpha, mask=mask)
        summed = multiply(alpha, a.to(WIDE), WIDE, PRECISION)
    else:
        highest = tl.full([HEAD_BLOCK], -float("inf"), dtype=WIDE)
        total = tl.zeros([HEAD_BLOCK], dtype=WIDE)
        for first in range(begin, end, EDGES):
            edge = first + number
            mask = there & (edge < end)[None, :]
            a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
            score = tl.load(of_head + edge[None, :], mask=mask, other=-float("inf"))
            score += multiply(q, tl.trans(a), WIDE, PRECISION) * SCALE
            tl.store(of_head + edge[None, :], score, mask=mask)
            before = highest
            highest = tl.maximum(before, tl.max(score, axis=1))
            level = tl.where(highest == -float("inf"), 0.0, highest)
            total = total * tl.exp2(before - level) + tl.sum(tl.exp2(score - level[:, None]), axis=1)
        tl.debug_barrier()
        normaliser = tl.where(highest == -float("inf"), 0.0, highest) + tl.log2(tl.where(total > 0, total, 1.0))
        for first in range(begin, end, EDGES):
            edge = first + number
            mask = there & (edge < end)[None, :]
            a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
            score = tl.load(of_head + edge[None, :], mask=mask, other=-float("inf"))
            alpha = tl.exp2(score - normaliser[:, None])
            tl.store(of_head + edge[None, :], alpha, mask=mask)
            summed += multiply(alpha, a.to(WIDE), WIDE, PRECISION)
    store_heads(sums, summed, node, head, feature, HEADS, FEATURE_BLOCK)
