"""Rows of nodes at the ends of edges, and sums of edges a node: each the other's gradient, neither in random order.

The edges are sorted by destination and have their order by source beside them, so the gradient of a row that many edges
read is a sum over edges that stand together: no atomic additions, the same bits every time. Sums of 16-bit numbers are
added up in float32.

Shapes: N nodes, M edges, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges


def rows_of_sources(x: Tensor, edges: Edges) -> Tensor:
    """Return the row of each edge's source, [N_src, F] to [M, F]."""
    rows: Tensor = _Rows.apply(x, edges.src, edges.src_perm, edges.src_ptr)
    return rows


def rows_of_destinations(x: Tensor, edges: Edges) -> Tensor:
    """Return the row of each edge's destination, [N_dst, F] to [M, F]."""
    rows: Tensor = _Rows.apply(x, edges.dst, None, edges.dst_ptr)
    return rows


def sums_into_destinations(x: Tensor, edges: Edges) -> Tensor:
    """Return the sum over the edges into each node, [M, F] to [N_dst, F]; 0 where there is none."""
    sums: Tensor = _Sums.apply(x, edges.dst, edges.dst_ptr)
    return sums


class _Rows(torch.autograd.Function):
    """Row `index` of x; its gradient is a sum over the edges in the order `order`, None where they stand so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, order: Tensor | None, pointers: Tensor) -> Tensor:
        ctx.save_for_backward(order, pointers)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, pointers = ctx.saved_tensors
        return _sums(grad, order, pointers), None, None, None


class _Sums(torch.autograd.Function):
    """Sums over the edges between two pointers; the gradient of an edge is that of its destination."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dst: Tensor, pointers: Tensor) -> Tensor:
        ctx.save_for_backward(dst)
        return _sums(x, None, pointers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (dst,) = ctx.saved_tensors
        return grad.index_select(0, dst), None, None


def _sums(x: Tensor, order: Tensor | None, pointers: Tensor) -> Tensor:
    index = torch.arange(x.shape[0], device=x.device) if order is None else order
    return nn.functional.embedding_bag(index, x.contiguous(), pointers, mode="sum", include_last_offset=True)
