"""The backward pass: which kernels run for the gradients that are asked for, in an order that keeps little at a time.

Shapes: N nodes, M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from etesian.kernels.triton_kernels.attribute_gradient import attribute_gradient_kernel
from etesian.kernels.triton_kernels.attribute_sums import attribute_sums_kernel
from etesian.kernels.triton_kernels.launch import Sizes, cut, grid_of, precision, rows, run_tuned, wide
from etesian.kernels.triton_kernels.projections import projections_kernel
from etesian.kernels.triton_kernels.query_gradient import query_gradient_kernel
from etesian.kernels.triton_kernels.score_gradients import score_gradients_kernel
from etesian.kernels.triton_kernels.source_gradients import source_gradients_kernel
from etesian.kernels.triton_kernels.tuning import Tile
from etesian.kernels.triton_kernels.weight_gradient import weight_gradient_kernel

PRODUCT_ROWS = 32
"""Nodes that a small product takes at a time; fewer than 64, so that a warp multiplies by itself."""
EDGE_ROWS = 64
"""Edges of a program of the attribute gradient."""
PARTS = 1024
"""Programs that share the gradient of the weight, about."""


@dataclass(frozen=True)
class Needed:
    """Which gradients are asked for."""

    query: bool
    sources: bool
    attributes: bool
    weight: bool


def backward(
    grad: Tensor, scores: Tensor, normalisers: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None],
    src: Tensor, dst: Tensor, dst_ptr: Tensor, src_perm: Tensor, src_ptr: Tensor,
    needed: Needed, *, measure: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the inputs, in order; one that is not asked for is empty."""
    query, key, value, attributes, weight, bias = inputs
    sizes = Sizes.of(query, key, attributes)
    if not sizes.num_edges or not query.numel():
        return [torch.zeros_like(t, memory_format=torch.contiguous_format) if wanted else query.new_empty(0)
                for t, wanted in asked(inputs, needed)]  # fmt: skip
    query, key, value, grad = rows(query), rows(key), rows(value), rows(grad)
    attributes, weight = attributes.contiguous(), weight.contiguous()
    call = _Backward(sizes, query.dtype, measure)
    marks = call.score_gradients(grad, value, attributes, weight, scores, normalisers, src, dst_ptr, needed.attributes)
    of_query = of_key = of_value = of_attributes = of_weight = of_bias = None
    by_alpha = by_ds = projected_query = None
    if needed.query or needed.weight:
        by_alpha, by_ds = call.attribute_sums(attributes, marks, dst_ptr, needed.weight)
    if needed.weight:
        assert by_alpha is not None
        assert by_ds is not None
        together = needed.attributes and sizes.channel_blocks == 1
        of_weight, of_bias, projected_query = call.weight_gradient(
            query, grad, weight, by_alpha, by_ds, dst_ptr, together
        )
        of_bias = None if bias is None else of_bias.to(bias.dtype)
        by_alpha = None
    if needed.attributes:
        if projected_query is None:
            projected_query = call.projections(query, weight)
        of_attributes = call.attribute_gradient(marks, projected_query, dst, attributes)
    projected_query, marks = None, replace(marks, projected_grad=None)
    if needed.query:
        assert by_ds is not None
        of_query = call.query_gradient(key, weight, marks, by_ds, src, dst_ptr, query.dtype)
    by_ds = None
    if needed.sources:
        of_key, of_value = call.source_gradients(query, grad, marks, dst, src_perm, src_ptr, key, value)
    found = (of_query, of_key, of_value, of_attributes, of_weight, of_bias)
    return [query.new_empty(0) if gradient is None else gradient for gradient in found]


def asked(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], needed: Needed
) -> list[tuple[Tensor, bool]]:
    """Return for each gradient what it is shaped like, and whether it is computed; one that is not is empty."""
    query, key, value, attributes, weight, bias = inputs
    return [(query, needed.query), (key, needed.sources), (value, needed.sources),
            (attributes, needed.attributes), (weight, needed.weight),
            (weight if bias is None else bias, needed.weight and bias is not None)]  # fmt: skip


@dataclass(frozen=True)
class Marks:
    """What the first kernel of the backward pass leaves to the others.

    Attributes
    ----------
    pairs : Tensor, shape (H, M, 2)
        Alpha and its gradient.
    means : Tensor, shape (H, N_dst)
        The mean of that gradient under alpha.
    projected_grad : Tensor or None, shape (N_dst, H, D)
        g W, where asked for and not used up.
    """

    pairs: Tensor
    means: Tensor
    projected_grad: Tensor | None


class _Backward:
    """The kernels of a backward pass.

    Parameters
    ----------
    sizes : Sizes
        Of the call.
    dtype : torch.dtype
        Of the query.
    measure : bool
        As for :func:`etesian.kernels.triton_kernels.tuning.choose`.
    """

    def __init__(self, sizes: Sizes, dtype: torch.dtype, measure: bool) -> None:
        self.sizes, self.measure, self.dtype = sizes, measure, wide(dtype)
        self.scale = 1 / math.sqrt(sizes.channels)
        self.of_all = sizes.constants | precision(dtype)
        self.ends = (sizes.num_dst, sizes.num_src)

    def score_gradients(
        self, grad: Tensor, value: Tensor, attributes: Tensor, weight: Tensor, scores: Tensor, normalisers: Tensor,
        src: Tensor, dst_ptr: Tensor, project: bool,
    ) -> Marks:  # fmt: skip
        """Return alpha, its gradient and the means, and g W where asked for."""
        sizes = self.sizes
        pairs, means = scores.new_empty((*scores.shape, 2)), torch.empty_like(normalisers)
        projected = scores.new_empty((sizes.num_dst, sizes.heads, sizes.features)) if project else None

        def run(tile: Tile) -> None:
            blocks, grid = grid_of(sizes.num_dst, sizes.heads, tile)
            score_gradients_kernel[grid](
                grad, value, attributes, weight, scores, normalisers, src, dst_ptr,
                pairs, means, pairs if projected is None else projected,
                sizes.num_dst, sizes.num_edges, blocks, grad.stride(0), value.stride(0),
                **self.of_all, **cut(tile), STORE_PROJECTED=project,
            )  # fmt: skip

        run_tuned("score_gradients", run, value, sizes, self.ends, self.measure)
        return Marks(pairs, means, projected)

    def attribute_sums(
        self, attributes: Tensor, marks: Marks, dst_ptr: Tensor, with_alpha: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Return sum alpha a, where asked for, and sum dS a, [N_dst, H, D]."""
        sizes = self.sizes
        by_ds = marks.pairs.new_empty((sizes.num_dst, sizes.heads, sizes.features))
        by_alpha = torch.empty_like(by_ds) if with_alpha else None
        constants = {name: self.of_all[name] for name in ("HEADS", "FEATURES", "FEATURE_BLOCK", "WIDE")}

        def run(tile: Tile) -> None:
            blocks, grid = grid_of(sizes.num_dst, sizes.heads, tile)
            attribute_sums_kernel[grid](
                attributes, marks.pairs, marks.means, dst_ptr, by_ds if by_alpha is None else by_alpha, by_ds,
                sizes.num_dst, sizes.num_edges, blocks,
                **constants, **cut(tile), SCALE=self.scale, STORE_BY_ALPHA=with_alpha,
            )  # fmt: skip

        run_tuned("attribute_sums", run, attributes, sizes, self.ends, self.measure)
        return by_alpha, by_ds

    def query_gradient(
        self, key: Tensor, weight: Tensor, marks: Marks, by_ds: Tensor, src: Tensor, dst_ptr: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return the gradient of the query."""
        sizes = self.sizes
        of_query = key.new_empty((sizes.num_dst, sizes.heads, sizes.channels), dtype=dtype)

        def run(tile: Tile) -> None:
            blocks, grid = grid_of(sizes.num_dst, sizes.heads, tile)
            query_gradient_kernel[(*grid, sizes.channel_blocks)](
                key, weight, marks.pairs, marks.means, by_ds, src, dst_ptr, of_query,
                sizes.num_dst, sizes.num_edges, blocks, key.stride(0),
                **self.of_all, **cut(tile), SCALE=self.scale,
            )  # fmt: skip

        run_tuned("query_gradient", run, key, sizes, self.ends, self.measure)
        return of_query

    def source_gradients(
        self, query: Tensor, grad: Tensor, marks: Marks, dst: Tensor, src_perm: Tensor, src_ptr: Tensor,
        key: Tensor, value: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the gradients of key and value."""
        sizes = self.sizes
        of_key, of_value = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (key, value))
        constants = {name: self.of_all[name] for name in ("HEADS", "CHANNELS", "CHANNEL_BLOCK", "WIDE")}

        def run(tile: Tile) -> None:
            blocks, grid = grid_of(sizes.num_src, sizes.heads, tile)
            source_gradients_kernel[(*grid, sizes.channel_blocks)](
                query, grad, marks.pairs, marks.means, dst, src_perm, src_ptr, of_key, of_value,
                sizes.num_src, sizes.num_dst, sizes.num_edges, blocks, query.stride(0), grad.stride(0),
                **constants, **cut(tile), SCALE=self.scale,
            )  # fmt: skip

        run_tuned("source_gradients", run, query, sizes, self.ends[::-1], self.measure)
        return of_key, of_value

    def weight_gradient(
        self, query: Tensor, grad: Tensor, weight: Tensor, by_alpha: Tensor, by_ds: Tensor, dst_ptr: Tensor,
        project: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        """Return the gradients of weight and bias, and q W where asked for.

        Parts of the nodes are summed up side by side, then the parts; their number depends on the shapes alone.
        """
        sizes = self.sizes
        programs = sizes.heads * sizes.channel_blocks
        parts = max(1, min(triton.cdiv(sizes.num_dst, PRODUCT_ROWS), PARTS // programs))
        nodes_a_part = triton.cdiv(triton.cdiv(sizes.num_dst, parts), PRODUCT_ROWS) * PRODUCT_ROWS
        parts = triton.cdiv(sizes.num_dst, nodes_a_part)
        weight_parts = by_alpha.new_empty((parts, sizes.heads * sizes.channels, sizes.features))
        bias_parts = by_alpha.new_empty((parts, sizes.heads * sizes.channels))
        projected = torch.empty_like(by_alpha) if project else None
        weight_gradient_kernel[sizes.heads, parts, sizes.channel_blocks](
            query, grad, weight, by_alpha, by_ds, dst_ptr,
            weight_parts, bias_parts, by_alpha if projected is None else projected,
            sizes.num_dst, nodes_a_part, query.stride(0), grad.stride(0),
            **self.of_all, ROWS=PRODUCT_ROWS, PROJECT=project, num_warps=2,
        )  # fmt: skip
        return weight_parts.sum(0).to(weight.dtype), bias_parts.sum(0), projected

    def projections(self, query: Tensor, weight: Tensor) -> Tensor:
        """Return q W, [N_dst, H, D]."""
        sizes = self.sizes
        projected = query.new_empty((sizes.num_dst, sizes.heads, sizes.features), dtype=self.dtype)
        blocks = triton.cdiv(sizes.num_dst, PRODUCT_ROWS)
        projections_kernel[blocks * sizes.heads,](
            query, weight, projected, sizes.num_dst, query.stride(0),
            **self.of_all, ROWS=PRODUCT_ROWS, num_warps=2,
        )  # fmt: skip
        return projected

    def attribute_gradient(self, marks: Marks, projected_query: Tensor, dst: Tensor, attributes: Tensor) -> Tensor:
        """Return the gradient of the attributes, [M, D]."""
        sizes = self.sizes
        of_attributes = torch.empty_like(attributes)
        constants = {name: self.of_all[name] for name in ("HEADS", "FEATURES", "FEATURE_BLOCK", "WIDE")}
        attribute_gradient_kernel[triton.cdiv(sizes.num_edges, EDGE_ROWS),](
            marks.pairs, marks.means, marks.projected_grad, projected_query, dst, of_attributes,
            sizes.num_dst, sizes.num_edges,
            **constants, SCALE=self.scale, ROWS=EDGE_ROWS, num_warps=2,
        )  # fmt: skip
        return of_attributes
