"""Backward over the edges into each node: the gradient of the scores, and what the edge attributes make with it."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_attributes, load_heads, multiply, store_heads


@triton.jit
def slopes_kernel(
    alphas, slopes, projected_query, projected_grad, attributes, pointers,
    by_alpha, by_ds, attribute_grad,
    num_edges,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, EDGES: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    OF_WEIGHT: tl.constexpr, OF_ATTRIBUTES: tl.constexpr,
):  # fmt: skip
    """Make ``dS = alpha (slope - mean) / sqrt(C)`` of slopes ``g . v``, [H, M], in place, and ``sum dS a``.

    The gradient of alpha is ``g . v + (g W) . a``; what g . b adds is the same for all edges into a node, so nothing of
    it is left in dS. Its mean is taken under alpha over the edges into a node. (The mean is g . (out - b) too, but the
    output is rounded: an error as large as all others together.)

    With `OF_WEIGHT` also ``sum alpha a``, [N_dst, H, D with zeros behind] like the other sum; with `OF_ATTRIBUTES` the
    gradient of the attributes, ``sum over heads of alpha (g W) + dS (q W)``, [M, D with zeros behind]. Programs:
    destination nodes; `EDGES` edges at a time, those of a node of more edges twice.
    """
    node = tl.program_id(0).to(tl.int64)
    head, feature, number = tl.arange(0, HEAD_BLOCK), tl.arange(0, FEATURE_BLOCK), tl.arange(0, EDGES)
    begin, end = tl.load(pointers + node), tl.load(pointers + node + 1)
    g = load_heads(projected_grad, node, head, feature, HEADS, FEATURE_BLOCK)
    of_head = head[:, None].to(tl.int64) * num_edges
    mean = tl.zeros([HEAD_BLOCK], dtype=WIDE)
    at_once = end - begin <= EDGES
    if not at_once:
        for first in range(begin, end, EDGES):
            edge = first + number
            mask = (head < HEADS)[:, None] & (edge < end)[None, :]
            a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
            alpha = tl.load(alphas + of_head + edge[None, :], mask=mask, other=0.0)
            slope = tl.load(slopes + of_head + edge[None, :], mask=mask, other=0.0)
            slope += multiply(g, tl.trans(a), WIDE, PRECISION)
            tl.store(slopes + of_head + edge[None, :], slope, mask=mask)
            mean += tl.sum(alpha * slope, axis=1)
        tl.debug_barrier()

    alpha_a = tl.zeros([HEAD_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    ds_a = tl.zeros([HEAD_BLOCK, FEATURE_BLOCK], dtype=WIDE)
    for first in range(begin, end, EDGES):
        edge = first + number
        mask = (head < HEADS)[:, None] & (edge < end)[None, :]
        a = load_attributes(attributes, edge, end, feature, FEATURE_BLOCK)
        alpha = tl.load(alphas + of_head + edge[None, :], mask=mask, other=0.0)
        slope = tl.load(slopes + of_head + edge[None, :], mask=mask, other=0.0)
        if at_once:
            slope += multiply(g, tl.trans(a), WIDE, PRECISION)
            mean = tl.sum(alpha * slope, axis=1)
        ds = alpha * (slope - mean[:, None]) * SCALE
        tl.store(slopes + of_head + edge[None, :], ds, mask=mask)
        ds_a += multiply(ds, a.to(WIDE), WIDE, PRECISION)
        if OF_WEIGHT:
            alpha_a += multiply(alpha, a.to(WIDE), WIDE, PRECISION)
        if OF_ATTRIBUTES:
            q = load_heads(projected_query, node, head, feature, HEADS, FEATURE_BLOCK)
            of_attributes = multiply(tl.trans(alpha).to(g.dtype), g, WIDE, PRECISION)
            of_attributes += multiply(tl.trans(ds).to(q.dtype), q, WIDE, PRECISION)
            place = edge[:, None].to(tl.int64) * FEATURE_BLOCK + feature[None, :]
            of_attributes = of_attributes.to(attribute_grad.dtype.element_ty)
            tl.store(attribute_grad + place, of_attributes, mask=(edge < end)[:, None])
    store_heads(by_ds, ds_a, node, head, feature, HEADS, FEATURE_BLOCK)
    if OF_WEIGHT:
        store_heads(by_alpha, alpha_a, node, head, feature, HEADS, FEATURE_BLOCK)
