"""Backward over the edges into each node: the gradient of the scores, and the sums of the edge attributes with it."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_attributes, load_heads, multiply, store_heads, store_pairs


@triton.jit
def slopes_kernel(
    alphas, slopes, projected_grad, attributes, pointers,
    kept, by_alpha, by_ds,
    num_edges,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, EDGES: tl.constexpr,
    ONCE: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, OF_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Make of slopes ``g . v``, [H, M], ``dS = alpha (slope - mean) / sqrt(C)``, and ``sum dS a``.

    The gradient of alpha is ``g . v + (g W) . a``; what g . b adds is the same for all edges into a node, so nothing of
    it is left in dS. Its mean is taken under alpha over the edges into a node. (The mean is g . (out - b) too, but the
    output is rounded: an error as large as all others together.) Alpha and dS are kept side by side, [H, M, 2]. With
    `OF_WEIGHT` also ``sum alpha a``, [N_dst, H, D with zeros behind] like the other sum.

    Programs: destination nodes; `EDGES` edges at a time, those of a node of more edges twice; with `ONCE` no node has
    more.
    """
    node = tl.program_id(0).to(tl.int64)
    head, feature, number = tl.arange(0, HEAD_BLOCK), tl.arange(0, FEATURE_BLOCK), tl.arange(0, EDGES)
    begin, end = tl.load(pointers + node), tl.load(pointers + node + 1)
    g = load_heads(projected_grad, node, head, feature, HEADS, FEATURE_BLOCK)
    of_head = head[:, None].to(tl.int64) * num_edges
    there = (head < HEADS)[:, None]
    alpha_a = tl.zeros([HEAD_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    ds_a = tl.zeros([HEAD_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    if ONCE or end - begin <= EDGES:
        edge = begin + number
        mask = there & (edge < end)[None, :]
        place = of_head + edge[None, :]
        a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
        alpha = tl.load(alphas + place, mask=mask, other=0.0)
        slope = tl.load(slopes + place, mask=mask, other=0.0) + multiply(g, tl.trans(a), WIDE, PRECISION)
        ds = alpha * (slope - tl.sum(alpha * slope, axis=1)[:, None]) * SCALE
        store_pairs(kept, place, alpha, ds, mask)
        ds_a = multiply(ds, a.to(WIDE), WIDE, PRECISION)
        if OF_WEIGHT:
            alpha_a = multiply(alpha, a.to(WIDE), WIDE, PRECISION)
    else:
        mean = tl.zeros([HEAD_BLOCK], dtype=WIDE)
        for first in range(begin, end, EDGES):
            edge = first + number
            mask = there & (edge < end)[None, :]
            place = of_head + edge[None, :]
            a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
            alpha = tl.load(alphas + place, mask=mask, other=0.0)
            slope = tl.load(slopes + place, mask=mask, other=0.0) + multiply(g, tl.trans(a), WIDE, PRECISION)
            tl.store(slopes + place, slope, mask=mask)
            mean += tl.sum(alpha * slope, axis=1)
        tl.debug_barrier()
        for first in range(begin, end, EDGES):
            edge = first + number
            mask = there & (edge < end)[None, :]
            place = of_head + edge[None, :]
            a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
            alpha = tl.load(alphas + place, mask=mask, other=0.0)
            slope = tl.load(slopes + place, mask=mask, other=0.0)
            ds = alpha * (slope - mean[:, None]) * SCALE
            store_pairs(kept, place, alpha, ds, mask)
            ds_a += multiply(ds, a.to(WIDE), WIDE, PRECISION)
            if OF_WEIGHT:
                alpha_a += multiply(alpha, a.to(WIDE), WIDE, PRECISION)
    store_heads(by_ds, ds_a, node, head, feature, HEADS, FEATURE_BLOCK)
    if OF_WEIGHT:
        store_heads(by_alpha, alpha_a, node, head, feature, HEADS, FEATURE_BLOCK)
