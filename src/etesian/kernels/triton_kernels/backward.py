"""The backward pass: which kernels run for the gradients that are asked for.

Shapes: N nodes, M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from etesian.graph.tiles import EdgeTiles
from etesian.kernels.triton_kernels.edges import edges_kernel
from etesian.kernels.triton_kernels.launch import NODES, OF_NODES, PAIRS, PRODUCTS, Call, Sizes, cdiv, rows, wide
from etesian.kernels.triton_kernels.slopes import slopes_kernel
from etesian.kernels.triton_kernels.sources import sources_kernel
from etesian.kernels.triton_kernels.tuning import Cut
from etesian.kernels.triton_kernels.weights import weights_kernel

EDGE_ROWS = 64
"""Edges of a program of the gradient of the attributes."""
WEIGHT_CHANNELS = 64
"""Channels of a program of the gradient of the weight, at most: it holds their products with all features."""
PROGRAMS = 4096
"""Programs that share the gradient of the weight, about; their number depends on the shapes alone."""


@dataclass(frozen=True)
class Needed:
    """Which gradients are asked for."""

    query: bool
    sources: bool
    attributes: bool
    weight: bool


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Query, key, value, edge attributes, edge weight, edge bias."""


def backward(
    grad: Tensor, alphas: Tensor, projected_query: Tensor, inputs: Inputs, dst: Tensor, tiles: EdgeTiles,
    most: int, needed: Needed, *, measure: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the inputs, in order; one that is not asked for is empty."""
    query, key, value, attributes, weight, bias = inputs
    sizes = Sizes.of(query, key, attributes)
    if not sizes.num_edges or not query.numel():
        return [torch.zeros_like(t, memory_format=torch.contiguous_format) if wanted else query.new_empty(0)
                for t, wanted in asked(inputs, needed)]  # fmt: skip
    query, key, value, grad = rows(query), rows(key), rows(value), rows(grad)
    call = _Backward(sizes, tiles, most, measure)
    turned = call.turn(weight)
    projected_grad = torch.empty_like(projected_query)
    call.project(grad, turned, projected_grad)
    kept, by_alpha, by_ds = call.slopes(alphas, grad, value, projected_grad, attributes, needed.weight)
    of_query = of_key = of_value = of_attributes = of_weight = of_bias = None
    if needed.attributes:
        of_attributes = call.edges(kept, projected_grad, projected_query, dst, attributes)
    if needed.weight:
        of_weight, of_bias = call.weights(grad, query, by_alpha, by_ds)
        of_weight, of_bias = of_weight.to(weight.dtype), None if bias is None else of_bias.to(bias.dtype)
    del projected_grad, by_alpha  # so that less is held at a time
    if needed.query:
        of_query = call.sums("query_gradient", kept, key, by_ds, turned, None)
    del by_ds
    if needed.sources:
        of_key, of_value = call.sources(kept, query, grad, key, value)
    found = (of_query, of_key, of_value, of_attributes, of_weight, of_bias)
    return [query.new_empty(0) if gradient is None else gradient for gradient in found]


def asked(inputs: Inputs, needed: Needed) -> list[tuple[Tensor, bool]]:
    """Return for each gradient what it is shaped like, and whether it is computed; one that is not is empty."""
    query, key, value, attributes, weight, bias = inputs
    return [(query, needed.query), (key, needed.sources), (value, needed.sources),
            (attributes, needed.attributes), (weight, needed.weight),
            (weight if bias is None else bias, needed.weight and bias is not None)]  # fmt: skip


class _Backward(Call):
    """The kernels of a backward pass."""

    def slopes(
        self, alphas: Tensor, grad: Tensor, value: Tensor, projected_grad: Tensor, attributes: Tensor, of_weight: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return alpha and the gradient of the scores, [H, M, 2]; sum alpha a, where asked for, and sum dS a.

        The sums are [N_dst, H, D with zeros behind].
        """
        sizes = self.sizes
        slopes = self.pairs("slopes", grad, value, 1.0)
        kept = grad.new_empty((sizes.heads, sizes.num_edges, 2))
        by_ds = torch.empty_like(projected_grad)
        by_alpha = torch.empty_like(projected_grad) if of_weight else by_ds
        slopes_kernel[sizes.num_dst,](
            alphas, slopes, projected_grad, self.pad(attributes), self.tiles.edge_ptr, kept, by_alpha, by_ds,
            sizes.num_edges, SCALE=1 / math.sqrt(sizes.channels), OF_WEIGHT=of_weight,
            **self.constants(OF_NODES), num_warps=1, num_stages=1,
        )  # fmt: skip
        return kept, by_alpha, by_ds

    def edges(
        self, kept: Tensor, projected_grad: Tensor, projected_query: Tensor, dst: Tensor, attributes: Tensor
    ) -> Tensor:
        """Return the gradient of the attributes, [M, D]."""
        sizes = self.sizes
        of_attributes = torch.empty(attributes.shape, dtype=attributes.dtype, device=attributes.device)
        edges_kernel[cdiv(sizes.num_edges, EDGE_ROWS),](
            kept, projected_grad, projected_query, dst, of_attributes, sizes.num_edges,
            **self.constants("HEADS FEATURES FEATURE_BLOCK WIDE"), ROWS=EDGE_ROWS, num_warps=2,
        )  # fmt: skip
        return of_attributes

    def sources(self, kept: Tensor, query: Tensor, grad: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of key and value."""
        sizes = self.sizes
        of_key, of_value = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (key, value))
        blocks = self.tiles.src_blocks

        def run(cut: Cut) -> None:
            sources_kernel[blocks * sizes.heads,](
                kept, query, grad, *self.by_src, of_key, of_value,
                sizes.num_edges, blocks, query.stride(0), grad.stride(0),
                ROWS=self.tiles.src_rows, **self.constants(PAIRS), **cut.options(),
            )  # fmt: skip

        self.cut("source_gradients", run)
        return of_key, of_value

    def weights(self, grad: Tensor, query: Tensor, by_alpha: Tensor, by_ds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias.

        Parts of the nodes are summed up side by side, then the parts; their number depends on the shapes alone.
        """
        sizes = self.sizes
        parts = max(1, min(cdiv(sizes.num_dst, NODES), PROGRAMS // sizes.heads))
        nodes_a_part = cdiv(cdiv(sizes.num_dst, parts), NODES) * NODES
        parts = cdiv(sizes.num_dst, nodes_a_part)
        width = sizes.heads * sizes.channels
        weight_parts = query.new_empty((parts, width, sizes.features), dtype=wide(sizes.dtype))
        bias_parts = query.new_empty((parts, width), dtype=wide(sizes.dtype))
        channels = min(sizes.channel_block, WEIGHT_CHANNELS)
        weights_kernel[parts * sizes.heads, cdiv(sizes.channels, channels)](
            grad, query, by_alpha, by_ds, self.tiles.edge_ptr, weight_parts, bias_parts,
            sizes.num_dst, parts, nodes_a_part, grad.stride(0), query.stride(0), NODES=NODES,
            **self.constants(f"{PRODUCTS} FEATURES") | {"CHANNEL_BLOCK": channels}, num_warps=2, num_stages=2,
        )  # fmt: skip
        return weight_parts.sum(0), bias_parts.sum(0)
