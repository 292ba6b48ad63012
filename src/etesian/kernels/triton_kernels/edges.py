"""Backward over edges: the gradient of the edge attributes."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_rows


@triton.jit
def edges_kernel(
    kept, projected_grad, projected_query, dst,
    attribute_grad,
    num_edges,
    HEADS: tl.constexpr, FEATURES: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute ``sum over heads of alpha (g W) + dS (q W)`` of each edge's destination, [M, D].

    Programs: edges, `ROWS` at a time. They are sorted by destination, so neighbours read the same rows.
    """
    edge, feature = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, FEATURE_BLOCK)
    node = tl.load(dst + edge, mask=edge < num_edges, other=-1)
    of_edge = kept + edge * 2
    summed = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for head in range(HEADS):
        gw = load_rows(projected_grad, node, HEADS * FEATURE_BLOCK, head, feature, FEATURE_BLOCK)
        qw = load_rows(projected_query, node, HEADS * FEATURE_BLOCK, head, feature, FEATURE_BLOCK)
        alpha = tl.load(of_edge, mask=edge < num_edges, other=0.0).to(WIDE)
        ds = tl.load(of_edge + 1, mask=edge < num_edges, other=0.0).to(WIDE)
        summed += alpha[:, None] * gw.to(WIDE) + ds[:, None] * qw.to(WIDE)
        of_edge += num_edges  # of a head: num_edges pairs, whose number times 2 need not fit into 32 bits
        of_edge += num_edges
    mask = (edge < num_edges)[:, None] & (feature < FEATURES)[None, :]
    target = attribute_grad + edge[:, None] * FEATURES + feature[None, :]
    tl.store(target, summed.to(attribute_grad.dtype.element_ty), mask=mask)
