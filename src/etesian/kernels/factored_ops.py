"""The factored graph attention as operators of torch: one result to keep, nothing inside to be done again.

``etesian::factored_graph_attention`` computes what :func:`etesian.kernels.factored.attend` does, and takes the tensors
of an :class:`etesian.graph.edges.Edges` one by one. Selective checkpointing keeps its output and alpha, N_dst H C and
M H numbers; the many operators that it is made of would be chosen or not one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etesian.graph.edges import Edges
from etesian.kernels import factored


@torch.library.custom_op("etesian::factored_graph_attention", mutates_args=())
def factored_graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    src: Tensor,
    dst: Tensor,
    dst_ptr: Tensor,
    src_perm: Tensor,
    src_ptr: Tensor,
) -> tuple[Tensor, Tensor]:
    """Attend over edges that are sorted by destination.

    Parameters
    ----------
    query, key, value, edge_attr, edge_weight, edge_bias
        As in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.
    src, dst, dst_ptr, src_perm, src_ptr : Tensor
        As in :class:`etesian.graph.edges.Edges`.

    Returns
    -------
    out : Tensor, shape (N_dst, H, C)
        In the dtype of the query.
    alpha : Tensor, shape (M, H)
        For the backward pass.
    """
    edges = _edges(src, dst, dst_ptr, src_perm, src_ptr)
    return factored.attend(query, key, value, edge_attr, edge_weight, edge_bias, edges)


@factored_graph_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    alpha = query.new_empty((edge_attr.shape[0], query.shape[1]), dtype=factored.wide(query.dtype))
    return out, alpha


@torch.library.custom_op("etesian::factored_graph_attention_backward", mutates_args=())
def factored_graph_attention_backward(
    grad: Tensor,
    alpha: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    src: Tensor,
    dst: Tensor,
    dst_ptr: Tensor,
    src_perm: Tensor,
    src_ptr: Tensor,
    needed: list[bool],
) -> list[Tensor]:
    """Return the gradients of query, key, value, edge attributes, weight and bias; empty where not `needed`."""
    inputs = (query, key, value, edge_attr, edge_weight, edge_bias)
    found = factored.gradients(grad, alpha, inputs, _edges(src, dst, dst_ptr, src_perm, src_ptr), needed)
    return [query.new_empty(0) if gradient is None else gradient for gradient in found]


@factored_graph_attention_backward.register_fake
def _(
    grad: Tensor,
    alpha: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    src: Tensor,
    dst: Tensor,
    dst_ptr: Tensor,
    src_perm: Tensor,
    src_ptr: Tensor,
    needed: list[bool],
) -> list[Tensor]:
    inputs = (query, key, value, edge_attr, edge_weight, edge_bias)
    return [
        query.new_empty(0) if t is None or not asked else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t, asked in zip(inputs, needed, strict=True)
    ]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, alpha = output
    ctx.save_for_backward(*inputs, alpha)
    ctx.mark_non_differentiable(alpha)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 11
    *tensors, alpha = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:6])
    gradients = factored_graph_attention_backward(grad, alpha, *tensors, needed)
    return (*(g if wanted else None for g, wanted in zip(gradients, needed, strict=True)), *[None] * 5)


factored_graph_attention.register_autograd(_backward, setup_context=_save)


def _edges(src: Tensor, dst: Tensor, dst_ptr: Tensor, src_perm: Tensor, src_ptr: Tensor) -> Edges:
    return Edges(src, dst, dst_ptr, src_perm, src_ptr, src_ptr.numel() - 1, dst_ptr.numel() - 1)
