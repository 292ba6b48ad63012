"""The attention as operators of torch: what ``torch.compile`` takes as they are, and autograd differentiates.

``etesian::graph_attention`` and ``etesian::graph_attention_backward`` take the tensors of an
:class:`etesian.graph.tiles.EdgeTiles` one by one. No operator changes an input, waits for the device, or adds up in an
order that depends on which program is first: the same input gives the same bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

import torch
import triton
from torch import Tensor

from etesian.graph.tiles import EdgeTiles
from etesian.kernels.triton_kernels import backward, launch
from etesian.kernels.triton_kernels.pairs import pairs_kernel

INTERPRETED = not isinstance(pairs_kernel, triton.runtime.JITFunction)
"""Whether Triton's interpreter runs the kernels, on a CPU, as ``TRITON_INTERPRET=1`` asks."""


_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor edge_attr, Tensor edge_weight, Tensor? edge_bias"
_EDGES = ", ".join(f"Tensor {field.name}" for field in fields(EdgeTiles))
_NUM_TILES = len(fields(EdgeTiles))

FORWARD, BACKWARD = "etesian::graph_attention", "etesian::graph_attention_backward"
torch.library.define(FORWARD, f"({_INPUTS}, Tensor dst, {_EDGES}, int most, bool tune) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    BACKWARD,
    f"(Tensor grad, Tensor alphas, Tensor projected, {_INPUTS}, Tensor dst, {_EDGES}, int most, bool[] needed, "
    "bool tune) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
graph_attention = torch.ops.etesian.graph_attention.default
"""Attend over edges that are sorted by destination.

Parameters
----------
query, key, value, edge_attr, edge_weight, edge_bias
    As in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.
dst : Tensor, shape (M,)
    Destination of each edge.
dst_nodes, ..., edge_ptr : Tensor
    The edges in tiles, the attributes of :class:`etesian.graph.tiles.EdgeTiles` in their order.
most : int
    Edges into a node at most.
tune : bool
    As for :func:`etesian.kernels.triton_kernels.tuning.choose`.

Returns
-------
out : Tensor, shape (N_dst, H, C)
    In the dtype of the query.
alphas : Tensor, shape (H, M)
    The weights of the edges, for the backward pass.
projected : Tensor, shape (N_dst, H, D with zeros behind)
    q W, likewise.

Raises
------
RuntimeError
    If the tensors are on a device that Triton has no kernels for.
"""
graph_attention_backward = torch.ops.etesian.graph_attention_backward.default
"""Return the gradients of query, key, value, edge attributes, weight and bias.

Parameters
----------
grad : Tensor, shape (N_dst, H, C)
    Gradient of the output.
alphas, projected : Tensor
    What the forward operator returned beside the output.
query, ..., edge_ptr, most
    What it was called with.
needed : list of bool
    Whether the gradient is asked for of the query, of key and value, of the attributes, of weight and bias. What is
    not asked for is empty.
tune : bool
    As in the forward pass.
"""


@torch.library.impl(FORWARD, "default")
def _forward(
    query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_bias: Tensor | None,
    dst: Tensor, *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    *tiles, most, tune = rest
    with _on(query):
        return launch.forward(
            query, key, value, edge_attr, edge_weight, edge_bias, EdgeTiles(*tiles), most, measure=tune
        )  # fmt: skip


@torch.library.register_fake(FORWARD)
def _(query: Tensor, key: Tensor, value: Tensor, edge_attr: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    sizes = launch.Sizes.of(query, key, edge_attr)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    alphas = query.new_empty((sizes.heads, sizes.num_edges), dtype=launch.wide(query.dtype))
    return out, alphas, query.new_empty((sizes.num_dst, sizes.heads, sizes.feature_block))


@torch.library.impl(BACKWARD, "default")
def _(grad: Tensor, alphas: Tensor, projected: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *inputs, dst = rest[:7]
    tiles, (most, needed, tune) = EdgeTiles(*rest[7:-3]), rest[-3:]
    with _on(grad):
        return tuple(
            backward.backward(
                grad, alphas, projected, tuple(inputs), dst, tiles, most, backward.Needed(*needed), measure=tune
            )
        )  # fmt: skip


@torch.library.register_fake(BACKWARD)
def _(grad: Tensor, alphas: Tensor, projected: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    inputs, needed = rest[:6], rest[-2]
    asked = backward.asked(inputs, backward.Needed(*needed))
    return tuple(t.new_empty(t.shape) if wanted else grad.new_empty(0) for t, wanted in asked)


class _GraphAttention(torch.autograd.Function):
    """Forward and backward operator together.

    What ``torch.library.register_autograd`` would make goes through the operator's arguments as often as there are
    arguments, at each call; with as many as these that takes longer than starting the kernels.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, ctx.most, ctx.tune = inputs
        out, alphas, projected = _below_autograd(*inputs)
        ctx.save_for_backward(alphas, projected, *tensors)
        ctx.mark_non_differentiable(alphas, projected)
        ctx.set_materialize_grads(False)
        return out, alphas, projected

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        others = [None] * (_NUM_TILES + 3)  # the destinations, the tiles, how many edges, and whether to tune
        if grad is None:
            return (*[None] * 6, *others)
        asked = ctx.needs_input_grad[:6]
        needed = [asked[0], asked[1] or asked[2], asked[3], asked[4] or asked[5]]
        gradients = graph_attention_backward(grad, *ctx.saved_tensors, ctx.most, needed, ctx.tune)
        return (*(g if wanted else None for g, wanted in zip(gradients, asked, strict=True)), *others)


def _below_autograd(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        found: tuple[Tensor, Tensor, Tensor] = graph_attention(*inputs)
    return found


@torch.library.impl(FORWARD, "Autograd")
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs[:6]):
        found: tuple[Tensor, Tensor, Tensor] = _GraphAttention.apply(*inputs)
        return found
    return _below_autograd(*inputs)


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return what makes the device of a tensor the one that kernels are started on."""
    if INTERPRETED:
        return nullcontext()
    if tensor.device.type == "cpu":
        raise RuntimeError(
            "the Triton kernels run on a GPU; on a CPU only under Triton's interpreter, TRITON_INTERPRET=1"
        )
    context: AbstractContextManager[Any] = torch.get_device_module(tensor.device).device(tensor.device)
    return context
