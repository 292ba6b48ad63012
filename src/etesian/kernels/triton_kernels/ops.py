"""The attention as operators of torch: what ``torch.compile`` takes as they are, and autograd differentiates.

``etesian::graph_attention`` and ``etesian::graph_attention_backward`` take the tensors of an
:class:`etesian.graph.edges.Edges` one by one. No operator changes an input, waits for the device, or adds up in an
order that depends on which program is first: the same input gives the same bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from etesian.graph.tiles import EdgeTiles
from etesian.kernels.triton_kernels import backward, launch
from etesian.kernels.triton_kernels.pairs import pairs_kernel

INTERPRETED = not isinstance(pairs_kernel, triton.runtime.JITFunction)
"""Whether Triton's interpreter runs the kernels, on a CPU, as ``TRITON_INTERPRET=1`` asks."""


@torch.library.custom_op("etesian::graph_attention", mutates_args=())
def graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    dst: Tensor,
    tiles: list[Tensor],
    most: int,
    tune: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend over edges that are sorted by destination.

    Parameters
    ----------
    query, key, value, edge_attr, edge_weight, edge_bias
        As in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.
    dst : Tensor, shape (M,)
        Destination of each edge.
    tiles : list of Tensor
        The edges, as :meth:`etesian.graph.tiles.EdgeTiles.tensors` lists them.
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
    with _on(query):
        return launch.forward(
            query, key, value, edge_attr, edge_weight, edge_bias, EdgeTiles(*tiles), most, measure=tune
        )


@graph_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    dst: Tensor,
    tiles: list[Tensor],
    most: int,
    tune: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    sizes = launch.Sizes.of(query, key, edge_attr)
    alphas = query.new_empty((sizes.heads, sizes.num_edges), dtype=launch.wide(query.dtype))
    return out, alphas, query.new_empty((sizes.num_dst, sizes.heads, sizes.feature_block))


@torch.library.custom_op("etesian::graph_attention_backward", mutates_args=())
def graph_attention_backward(
    grad: Tensor,
    alphas: Tensor,
    projected: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    dst: Tensor,
    tiles: list[Tensor],
    most: int,
    needed: list[bool],
    tune: bool,
) -> list[Tensor]:
    """Return the gradients of query, key, value, edge attributes, weight and bias.

    Parameters
    ----------
    grad : Tensor, shape (N_dst, H, C)
        Gradient of the output.
    alphas, projected : Tensor
        What :func:`graph_attention` returned beside the output.
    query, key, value, edge_attr, edge_weight, edge_bias, dst, tiles, most, tune
        What it was called with.
    needed : list of bool
        Whether the gradient is asked for of the query, of key and value, of the attributes, of weight and bias. What
        is not asked for may be empty.
    """
    inputs = (query, key, value, edge_attr, edge_weight, edge_bias)
    with _on(query):
        return backward.backward(
            grad, alphas, projected, inputs, dst, EdgeTiles(*tiles), most, backward.Needed(*needed), measure=tune
        )  # fmt: skip


@graph_attention_backward.register_fake
def _(
    grad: Tensor,
    alphas: Tensor,
    projected: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge_attr: Tensor,
    edge_weight: Tensor,
    edge_bias: Tensor | None,
    dst: Tensor,
    tiles: list[Tensor],
    most: int,
    needed: list[bool],
    tune: bool,
) -> list[Tensor]:
    inputs = (query, key, value, edge_attr, edge_weight, edge_bias)
    asked = backward.asked(inputs, backward.Needed(*needed))
    return [t.new_empty(t.shape) if wanted else query.new_empty(0) for t, wanted in asked]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, tiles, ctx.most, ctx.tune = inputs
    _, *kept = output
    ctx.save_for_backward(*kept, *tensors, *tiles)
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    (alphas, projected, *tensors), tiles = ctx.saved_tensors[:9], list(ctx.saved_tensors[9:])
    if grad is None:
        return (*[None] * 7, [None] * len(tiles), None, None)
    asked = ctx.needs_input_grad[:6]
    needed = [asked[0], asked[1] or asked[2], asked[3], asked[4] or asked[5]]
    gradients = graph_attention_backward(grad, alphas, projected, *tensors, tiles, ctx.most, needed, ctx.tune)
    gradients = [g if wanted else None for g, wanted in zip(gradients, asked, strict=True)]
    return (*gradients, None, [None] * len(tiles), None, None)


graph_attention.register_autograd(_backward, setup_context=_save)


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
