"""Backward over the edges into each node: the gradient of the scores, and the sums of the edge attributes with it."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_attributes, rows_of


@triton.jit
def slopes_kernel(
    alphas, slopes, projected_grad, attributes, pointers,
    kept, by_alpha, by_ds,
    num_dst, num_edges,
    HEADS: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Make of slopes ``g . v``, [H, M], ``dS = alpha (slope - mean) / sqrt(C)``; sum alpha a and dS a over the edges.

    The gradient of alpha is ``g . v + (g W) . a``; what g . b adds is the same for all edges into a node, so nothing of
    it is left in dS. Its mean is taken under alpha over the edges into a node. (The mean is g . (out - b) too, but the
    output is rounded: an error as large as all others together.) Alpha and dS are kept side by side, [H, M, 2]; the
    sums are [N_dst, H, D with zeros behind]. Programs: rows; each takes its edges one by one.
    """
    row, there, head, begin, end, steps = rows_of(pointers, num_dst, HEADS, ROWS)
    feature = tl.arange(0, FEATURE_BLOCK)
    place = row[:, None] * FEATURE_BLOCK + feature[None, :]
    g = tl.load(projected_grad + place, mask=there[:, None], other=0.0).to(WIDE)
    alphas += head * num_edges
    slopes += head * num_edges
    mean = tl.zeros([ROWS], dtype=WIDE)
    alpha_a = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    slope_a = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for step in range(steps):
        edge = begin + step
        a = load_attributes(attributes, edge, edge < end, feature, FEATURE_BLOCK).to(WIDE)
        alpha = tl.load(alphas + edge, mask=edge < end, other=0.0)
        slope = tl.load(slopes + edge, mask=edge < end, other=0.0) + tl.sum(g * a, axis=1)
        tl.store(slopes + edge, slope, mask=edge < end)
        mean += alpha * slope
        alpha_a += alpha[:, None] * a
        slope_a += (alpha * slope)[:, None] * a
    ds_a = (slope_a - mean[:, None] * alpha_a) * SCALE
    tl.store(by_alpha + place, alpha_a.to(by_alpha.dtype.element_ty), mask=there[:, None])
    tl.store(by_ds + place, ds_a.to(by_ds.dtype.element_ty), mask=there[:, None])
    tl.debug_barrier()
    kept += head * num_edges * 2
    for step in range(steps):
        edge = begin + step
        alpha = tl.load(alphas + edge, mask=edge < end, other=0.0)
        ds = alpha * (tl.load(slopes + edge, mask=edge < end, other=0.0) - mean) * SCALE
        of_edge = (kept + edge.to(tl.int64) * 2)[:, None] + tl.arange(0, 2)[None, :]
        tl.store(of_edge, tl.join(alpha, ds).to(kept.dtype.element_ty), mask=(edge < end)[:, None])
