"""From tensors to kernels: sizes, grids, buffers. Grids depend on shapes alone, so nothing waits for the device.

Shapes: N nodes, M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor, nn

from etesian.graph.tiles import EdgeTiles
from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.pairs import pairs_kernel
from etesian.kernels.triton_kernels.project import project_kernel
from etesian.kernels.triton_kernels.softmax import softmax_kernel
from etesian.kernels.triton_kernels.sums import sums_kernel
from etesian.kernels.triton_kernels.tuning import Cut, Work

NODES = 32
"""Nodes that a small product takes at a time; fewer than 64, so that a warp multiplies by itself."""
EDGES = (16, 32)
"""Edges into a node that are taken at a time: the smaller number, unless nodes have more of them."""
PAIRS = "HEADS CHANNELS CHANNEL_BLOCK WIDE PRECISION"
PRODUCTS = f"{PAIRS} FEATURE_BLOCK"
OF_NODES = "HEADS HEAD_BLOCK FEATURE_BLOCK EDGES ONCE WIDE PRECISION"
"""What kernels of some kinds are compiled for."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call.

    Attributes
    ----------
    num_dst, num_src, num_edges, heads, channels, features : int
        N_dst, N_src, M, H, C, D.
    dtype : torch.dtype
        Of queries, keys and values.
    device : torch.device
        Where they are.
    """

    num_dst: int
    num_src: int
    num_edges: int
    heads: int
    channels: int
    features: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, query: Tensor, key: Tensor, attributes: Tensor) -> Sizes:
        """Read the sizes off the inputs."""
        num_dst, heads, channels = query.shape
        num_edges, features = attributes.shape
        return cls(num_dst, key.shape[0], num_edges, heads, channels, features, query.dtype, query.device)

    @property
    def channel_block(self) -> int:
        """Channels of a tile."""
        return block_of(self.channels)

    @property
    def feature_block(self) -> int:
        """Features of a tile."""
        return block_of(self.features)


def cdiv(count: int, size: int) -> int:
    """Return how many pieces of a size hold a count."""
    return -(-count // size)


def block_of(number: int) -> int:
    """Return the size of a tile that holds a number of rows or columns: a power of two, as matrix units want 16."""
    return max(16, 1 << max(0, number - 1).bit_length())


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are taken in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows(x: Tensor) -> Tensor:
    """Return x [N, H, C] with the channels of a node side by side; the nodes may lie apart."""
    inner = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if inner or not x.numel() else x.contiguous()


@functools.lru_cache(maxsize=1024)
def _constants(
    names: str, heads: int, channels: int, features: int, dtype: torch.dtype, at_a_time: int, once: bool
) -> dict[str, Any]:
    known = {
        "HEADS": heads, "CHANNELS": channels, "FEATURES": features, "CHANNEL_BLOCK": block_of(channels),
        "FEATURE_BLOCK": block_of(features), "HEAD_BLOCK": block_of(heads), "EDGES": at_a_time, "ONCE": once,
        "WIDE": tl.float64 if dtype == torch.float64 else tl.float32,
        # Of products of wide numbers. tf32 cuts them off at the 10 bits of float16, which would be seen there.
        "PRECISION": "tf32" if dtype == torch.bfloat16 else "ieee",
    }  # fmt: skip
    return {name: known[name] for name in names.split()}


class Call:
    """The kernels that forward and backward have in common, for one call.

    Parameters
    ----------
    sizes : Sizes
        Of the call.
    tiles : EdgeTiles
        The edges.
    most : int
        Edges into a node at most.
    measure : bool
        As for :func:`etesian.kernels.triton_kernels.tuning.choose`.
    """

    def __init__(self, sizes: Sizes, tiles: EdgeTiles, most: int, measure: bool) -> None:
        self.sizes, self.tiles, self.measure = sizes, tiles, measure
        at_a_time = EDGES[sizes.num_edges > EDGES[0] * sizes.num_dst]
        self.known = (sizes.heads, sizes.channels, sizes.features, sizes.dtype, at_a_time, most <= at_a_time)
        self.by_dst = (tiles.dst_nodes, tiles.dst_ptr, tiles.dst_slots, tiles.dst_edges, tiles.edge_ptr)
        self.by_src = (tiles.src_nodes, tiles.src_ptr, tiles.src_slots, tiles.src_edges)

    def cut(self, kernel: str, run: tuning.Run) -> None:
        """Choose how the work of a kernel is cut, and run it."""
        sizes = self.sizes
        work = Work(kernel, sizes.device, sizes.dtype, sizes.num_dst, sizes.num_src, sizes.num_edges, sizes.heads,
                    sizes.channels, sizes.features, sizes.channel_block)  # fmt: skip
        run(tuning.choose(work, run, measure=self.measure))

    def constants(self, names: str) -> dict[str, Any]:
        """Return what a kernel is compiled for, by name; not to be changed."""
        return _constants(names, *self.known)

    def pad(self, attributes: Tensor) -> Tensor:
        """Return the attributes with zeros behind, [M, feature_block]."""
        return nn.functional.pad(attributes, (0, self.sizes.feature_block - self.sizes.features)).contiguous()

    def turn(self, weight: Tensor) -> Tensor:
        """Return the edge weight [H C, D] as the kernels read it, [H, D with zeros behind, C]."""
        sizes = self.sizes
        by_head = weight.view(sizes.heads, sizes.channels, sizes.features).transpose(1, 2)
        return nn.functional.pad(by_head, (0, 0, 0, sizes.feature_block - sizes.features)).contiguous()

    def project(self, x: Tensor, weight: Tensor, projected: Tensor) -> None:
        """Compute x W of the destinations, [N_dst, H, D with zeros behind]."""
        sizes = self.sizes
        blocks = cdiv(sizes.num_dst, NODES)
        project_kernel[blocks * sizes.heads,](
            x, weight, projected, sizes.num_dst, blocks, x.stride(0), NODES=NODES,
            **self.constants(PRODUCTS), num_warps=2,
        )  # fmt: skip

    def pairs(self, kernel: str, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """Return ``scale x_i . y_j`` for each edge from j to i, [H, M]."""
        sizes = self.sizes
        products = x.new_empty((sizes.heads, sizes.num_edges), dtype=wide(sizes.dtype))
        blocks = self.tiles.dst_blocks

        def run(cut: Cut) -> None:
            pairs_kernel[blocks * sizes.heads,](
                x, y, *self.by_dst, products, sizes.num_edges, blocks, x.stride(0), y.stride(0), SCALE=scale,
                ROWS=self.tiles.dst_rows, **self.constants(PAIRS), **cut.options(),
            )  # fmt: skip

        self.cut(kernel, run)
        return products

    def sums(
        self, kernel: str, factors: Tensor, y: Tensor, of_attributes: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return ``sum f y_j + W (sum f a) + b`` for factors f of the edges from j to i, [N_dst, H, C].

        The factors are [H, M], or the last of [H, M, 2].
        """
        sizes = self.sizes
        out = y.new_empty((sizes.num_dst, sizes.heads, sizes.channels), dtype=sizes.dtype)
        blocks = self.tiles.dst_blocks

        def run(cut: Cut) -> None:
            sums_kernel[blocks * sizes.heads,](
                factors, y, of_attributes, weight, weight if bias is None else bias, *self.by_dst, out,
                sizes.num_edges, blocks, y.stride(0), BIAS=bias is not None, ROWS=self.tiles.dst_rows,
                STRIDE=2 if factors.dim() == 3 else 1,
                **self.constants(PRODUCTS), **cut.options(),
            )  # fmt: skip

        self.cut(kernel, run)
        return out


def forward(
    query: Tensor, key: Tensor, value: Tensor, attributes: Tensor, weight: Tensor, bias: Tensor | None,
    tiles: EdgeTiles, most: int, *, measure: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the output [N_dst, H, C]; alpha [H, M] and q W [N_dst, H, D with zeros behind] for the backward pass."""
    sizes = Sizes.of(query, key, attributes)
    projected = query.new_empty((sizes.num_dst, sizes.heads, sizes.feature_block))
    if not sizes.num_edges or not query.numel():
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        return out, query.new_zeros((sizes.heads, sizes.num_edges), dtype=wide(query.dtype)), projected.zero_()
    query, key, value = rows(query), rows(key), rows(value)
    call = Call(sizes, tiles, most, measure)
    attributes, weight = call.pad(attributes), call.turn(weight)
    scale = math.log2(math.e) / math.sqrt(sizes.channels)  # the softmax is taken to the base 2
    call.project(query, weight, projected)
    alphas = call.pairs("scores", query, key, scale)
    sums = torch.empty_like(projected)
    softmax_kernel[sizes.num_dst,](
        alphas, projected, attributes, tiles.edge_ptr, sums, sizes.num_edges, SCALE=scale,
        **call.constants(OF_NODES), num_warps=1, num_stages=1,
    )  # fmt: skip
    return call.sums("outputs", alphas, value, sums, weight, bias), alphas, projected
