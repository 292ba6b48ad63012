"""Graph attention that never forms the edge projection; pure PyTorch, any device: the default.

With e = W a + b for an edge with attributes a (formulas in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`)::

    q . (k + e)           =  q . k + (q W) . a  + q . b      the last is the same for all edges into a node: it cancels
    sum alpha (v + e)     =  sum alpha v + W (sum alpha a) + b        b only where the node has an edge

so an edge is read as its D attributes, not as H C projected numbers. Weighted sums of
rows are embedding bags, which read rows and add them up without writing M H C numbers; products of queries and keys
are taken in chunks of edges that stay in a cache. Saved for the backward pass, beside the inputs: alpha, M H numbers.
:mod:`etesian.kernels.factored_ops` has the whole of it as one operator.

Shapes: N nodes, M edges, m edges of a chunk, H heads, C channels a head, D edge features. "By head" tensors have the
head first, as batched matrix products and bags want it: `q_HNC`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etesian.graph.edges import Edges

CHUNK_ON_CPU = 2**19
"""Numbers a chunk of gathered rows holds on a CPU: 2 MB in float32, so that it stays in the cache."""
CHUNK_ELSEWHERE = 2**27
"""The same on other devices, where few large launches count: 512 MB in float32."""


class FactoredGraphAttention(nn.Module):
    """Graph attention without edge projections.

    Parameters
    ----------
    num_heads, head_channels : int
        H and C.

    Attributes
    ----------
    as_one_operator : bool
        Whether it is called as one operator of torch, whose results selective checkpointing can keep; a compiler does
        not see into that.
    """

    as_one_operator = False

    def __init__(self, num_heads: int, head_channels: int) -> None:
        super().__init__()
        self.num_heads, self.head_channels = num_heads, head_channels

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        edge_weight: Tensor,
        edge_bias: Tensor | None,
        edges: Edges,
    ) -> Tensor:
        """Attend over the edges; see :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.

        Numbers of 16 bits are computed in float32; the result has the dtype of the query.
        """
        if self.as_one_operator:
            from etesian.kernels.factored_ops import factored_graph_attention

            tensors = (edges.src, edges.dst, edges.dst_ptr, edges.src_perm, edges.src_ptr)
            return factored_graph_attention(query, key, value, edge_attr, edge_weight, edge_bias, *tensors)[0]
        return _FactoredAttention.apply(query, key, value, edge_attr, edge_weight, edge_bias, edges)


class _FactoredAttention(torch.autograd.Function):
    """The attention with its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        edge_weight: Tensor,
        edge_bias: Tensor | None,
        edges: Edges,
    ) -> Tensor:
        ctx.edges = edges
        out, alpha_MH = attend(query, key, value, edge_attr, edge_weight, edge_bias, edges)
        ctx.save_for_backward(query, key, value, edge_attr, edge_weight, edge_bias, alpha_MH)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, alpha_MH = ctx.saved_tensors
        return (*gradients(grad_out, alpha_MH, tuple(inputs), ctx.edges, ctx.needs_input_grad[:6]), None)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """Return the output [N_dst, H, C] and alpha [M, H], which :func:`gradients` needs."""
    _, heads, channels = query.shape
    dtype = wide(query.dtype)
    if not edges.num_edges:
        return torch.zeros_like(query), query.new_empty((0, heads), dtype=dtype)
    with torch.autocast(query.device.type, enabled=False):
        q_NHC, k_NHC, v_NHC, a_MD, w = (t.detach().to(dtype) for t in (query, key, value, edge_attr, edge_weight))
        w_HCD = w.reshape(heads, channels, -1)
        qw_HDN = _project(q_NHC, w_HCD)
        score_MH = _edge_products(q_NHC, k_NHC, qw_HDN, a_MD, edges).mul_(channels**-0.5)
        alpha_MH = _segment_softmax(score_MH, edges)

        alpha_HM = alpha_MH.t().contiguous()
        out_HNC = _sum_into_destinations(alpha_HM, v_NHC, edges)
        out_HNC.baddbmm_(_sum_attributes(alpha_HM, a_MD, edges), w_HCD.mT)
        out = out_HNC.permute(1, 0, 2).contiguous()  # [N_dst, H, C]
        if edge_bias is not None:
            out += edge_bias.to(dtype).view(heads, channels) * _has_edges(edges)[:, None, None]
    return out.to(query.dtype), alpha_MH


def gradients(
    grad_out: Tensor, alpha_MH: Tensor, inputs: tuple[Tensor | None, ...], edges: Edges, need: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients of the six tensors that :func:`attend` was called with; None where `need` is false."""
    if not edges.num_edges:
        return [torch.zeros_like(t) if t is not None and asked else None for t, asked in zip(inputs, need, strict=True)]
    query, key, value, edge_attr, edge_weight, edge_bias = inputs
    assert query is not None
    dtype = alpha_MH.dtype
    _, heads, channels = query.shape
    with torch.autocast(query.device.type, enabled=False):
        q_NHC, k_NHC, v_NHC, a_MD, w, g_NHC = (
            t.detach().to(dtype)
            for t in (query, key, value, edge_attr, edge_weight, grad_out.contiguous())
            if t is not None
        )
        w_HCD = w.reshape(heads, channels, -1)
        gw_HDN = _project(g_NHC, w_HCD)
        # The gradient of alpha, without g.b, which is the same for all edges into a node and cancels in dS.
        grad_alpha_MH = _edge_products(g_NHC, v_NHC, gw_HDN, a_MD, edges)
        ds_MH = _softmax_backward(alpha_MH, grad_alpha_MH, edges).mul_(channels**-0.5)
        alpha_HM, ds_HM = alpha_MH.t().contiguous(), ds_MH.t().contiguous()
        summed_a_HND = _sum_attributes(alpha_HM, a_MD, edges)
        summed_ds_HND = _sum_attributes(ds_HM, a_MD, edges)

        grads: list[Tensor | None] = [None] * 6
        if need[0]:
            dq_HNC = _sum_into_destinations(ds_HM, k_NHC, edges).baddbmm_(summed_ds_HND, w_HCD.mT)
            grads[0] = dq_HNC.permute(1, 0, 2)
        if need[1]:
            grads[1] = _sum_into_sources(ds_MH, q_NHC, edges).permute(1, 0, 2)
        if need[2]:
            grads[2] = _sum_into_sources(alpha_MH, g_NHC, edges).permute(1, 0, 2)
        if need[3]:
            qw_HDN = _project(q_NHC, w_HCD)
            weight_MI = torch.cat([alpha_MH, ds_MH], dim=1)  # [M, 2 H]
            rows_NID = torch.cat([gw_HDN, qw_HDN]).permute(2, 0, 1)  # [N_dst, 2 H, D]
            grads[3] = _sum_rows_of_destination(weight_MI, rows_NID, edges)
        if need[4]:
            dw_HDC = torch.bmm(summed_a_HND.mT, g_NHC.transpose(0, 1))
            dw_HDC.baddbmm_(summed_ds_HND.mT, q_NHC.transpose(0, 1))
            grads[4] = dw_HDC.mT.reshape(heads * channels, -1)
        if edge_bias is not None and need[5]:
            grads[5] = _has_edges(edges).to(dtype) @ g_NHC.view(-1, heads * channels)
    return [None if g is None or t is None else g.to(t.dtype).contiguous() for g, t in zip(grads, inputs, strict=True)]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _project(x_NHC: Tensor, w_HCD: Tensor) -> Tensor:
    """Return x W a head, [H, D, N]: with the long axis last the product is three times as fast on a CPU."""
    return torch.bmm(w_HCD.mT, x_NHC.permute(1, 2, 0))


def _has_edges(edges: Edges) -> Tensor:
    """Return which destination nodes have an edge, bool [N_dst]."""
    return edges.dst_ptr[1:] > edges.dst_ptr[:-1]


def _chunks(edges: Edges, width: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of the edges; `width` is the row that each of them gathers."""
    budget = CHUNK_ON_CPU if device.type == "cpu" else CHUNK_ELSEWHERE
    step = max(1, budget // width)
    for start in range(0, edges.num_edges, step):
        yield slice(start, min(start + step, edges.num_edges))


def _edge_products(x_NHC: Tensor, y_NHC: Tensor, xw_HDN: Tensor, a_MD: Tensor, edges: Edges) -> Tensor:
    """Return ``x_dst . y_src + (x W)_dst . a`` a head, [M, H]."""
    _, heads, channels = x_NHC.shape
    out_MH = _sum_rows_of_destination(a_MD, xw_HDN.permute(2, 1, 0), edges)  # the edge's part
    for part in _chunks(edges, heads * channels, x_NHC.device):
        product = x_NHC.index_select(0, edges.dst[part])  # [m, H, C]
        product.mul_(y_NHC.index_select(0, edges.src[part]))
        out_MH[part] += product.sum(-1)
    return out_MH


def _segment_softmax(score_MH: Tensor, edges: Edges) -> Tensor:
    """Return the softmax over the edges into each node, [M, H]."""
    highest = torch.segment_reduce(score_MH, "max", offsets=edges.dst_ptr, axis=0, unsafe=True)  # [N_dst, H]
    power = score_MH.sub(highest.index_select(0, edges.dst)).exp_()
    total = torch.segment_reduce(power, "sum", offsets=edges.dst_ptr, axis=0, unsafe=True)
    return power.div_(total.index_select(0, edges.dst))


def _softmax_backward(alpha_MH: Tensor, grad_MH: Tensor, edges: Edges) -> Tensor:
    """Return the gradient of the scores, [M, H]."""
    weighted = torch.segment_reduce(alpha_MH * grad_MH, "sum", offsets=edges.dst_ptr, axis=0, unsafe=True)
    return grad_MH.sub_(weighted.index_select(0, edges.dst)).mul_(alpha_MH)


def _sum_into_destinations(weight_HM: Tensor, x_NHC: Tensor, edges: Edges) -> Tensor:
    """Return for each destination the weighted sum of its sources' rows, [H, N_dst, C]."""
    return _bags(weight_HM, x_NHC, edges.src, edges.dst_ptr)


def _sum_into_sources(weight_MH: Tensor, x_NHC: Tensor, edges: Edges) -> Tensor:
    """Return for each source the weighted sum of its destinations' rows, [H, N_src, C]."""
    weight_HM = weight_MH.index_select(0, edges.src_perm).t().contiguous()
    return _bags(weight_HM, x_NHC, edges.dst.index_select(0, edges.src_perm), edges.src_ptr)


def _bags(weight_HM: Tensor, x_NHC: Tensor, row: Tensor, pointers: Tensor) -> Tensor:
    """Sum weighted rows, a bag for each head and node, the head first: [H, N, C].

    Row (n, h) of `x_NHC` lies at n H + h of the flattened table, so no copy by head is needed.
    """
    _, heads, channels = x_NHC.shape
    kind = _index_type(max(x_NHC.shape[0], row.numel()) * heads)
    head = torch.arange(heads, device=row.device, dtype=kind)[:, None]
    index_HM = row.to(kind) * heads + head
    offsets_HN = pointers[:-1].to(kind) + head * row.numel()
    return _weighted_bags(index_HM, offsets_HN, x_NHC.reshape(-1, channels), weight_HM).view(heads, -1, channels)


def _sum_attributes(weight_HM: Tensor, a_MD: Tensor, edges: Edges) -> Tensor:
    """Return for each destination the weighted sum of the attributes of its edges, [H, N_dst, D]."""
    heads, num_edges = weight_HM.shape
    kind = _index_type(heads * num_edges)
    index_HM = torch.arange(num_edges, device=a_MD.device, dtype=kind).expand(heads, -1)
    head = torch.arange(heads, device=a_MD.device, dtype=kind)[:, None]
    offsets_HN = edges.dst_ptr[:-1].to(kind) + head * num_edges
    return _weighted_bags(index_HM, offsets_HN, a_MD, weight_HM).view(heads, -1, a_MD.shape[1])


def _sum_rows_of_destination(weight_MI: Tensor, rows_NIJ: Tensor, edges: Edges) -> Tensor:
    """Return for each edge ``sum_i weight_i rows_i`` with the rows of its destination, [M, J]."""
    num_edges, count = weight_MI.shape
    kind = _index_type(max(rows_NIJ.shape[0], num_edges) * count)
    index_MI = edges.dst[:, None].to(kind) * count + torch.arange(count, device=edges.dst.device, dtype=kind)
    offsets_M = torch.arange(num_edges, device=edges.dst.device, dtype=kind) * count
    return _weighted_bags(index_MI, offsets_M, rows_NIJ.reshape(-1, rows_NIJ.shape[-1]), weight_MI)


def _index_type(largest: int) -> torch.dtype:
    """Return 32 bits where they suffice: half the bytes to read."""
    return torch.int32 if largest < 2**31 else torch.int64


def _weighted_bags(index: Tensor, offsets: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sums of rows of `table`; a bag begins at each offset into the flattened index."""
    return nn.functional.embedding_bag(
        index.flatten(), table, offsets.flatten(), mode="sum", per_sample_weights=weight.flatten()
    )
