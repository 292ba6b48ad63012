"""Backward: the gradient of the edge attributes."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_features


@triton.jit
def attribute_gradient_kernel(
    pairs, means, projected_grad, projected_query, dst,
    attribute_grad,
    num_dst, num_edges,
    HEADS: tl.constexpr, FEATURES: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute ``sum over heads of alpha (g W) + dS (q W)`` of each edge's destination, [M, D].

    Programs: blocks of edges. Edges are sorted by destination, so neighbours read the same rows.
    """
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there, feature = edge < num_edges, tl.arange(0, FEATURE_BLOCK)
    node = tl.load(dst + edge, mask=there, other=0).to(tl.int64)
    summed = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    pair, mean_of = pairs + edge * 2, means + node
    for head in range(HEADS):
        alpha = tl.load(pair, mask=there, other=0.0)
        mean = tl.load(mean_of, mask=there, other=0.0)
        ds = alpha * (tl.load(pair + 1, mask=there, other=0.0) - mean) * SCALE
        gw = load_features(projected_grad, node, there, head, feature, HEADS, FEATURES)
        qw = load_features(projected_query, node, there, head, feature, HEADS, FEATURES)
        summed += alpha[:, None] * gw + ds[:, None] * qw
        pair += num_edges  # of a head: num_edges pairs, whose number times 2 need not fit into 32 bits
        pair += num_edges
        mean_of += num_dst
    mask = there[:, None] & (feature < FEATURES)[None, :]
    place = attribute_grad + edge[:, None] * FEATURES + feature[None, :]
    tl.store(place, summed.to(attribute_grad.dtype.element_ty), mask=mask)
