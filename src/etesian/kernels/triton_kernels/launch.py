"""From tensors to kernels: sizes, grids, buffers. Grids depend on shapes alone, so nothing waits for the device.

Shapes: N nodes, M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.outputs import outputs_kernel
from etesian.kernels.triton_kernels.scores import scores_kernel
from etesian.kernels.triton_kernels.tuning import Tile, Work

WIDEST_BLOCK = 128
"""Channels of a tile at most; wider heads are taken in blocks."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call.

    Attributes
    ----------
    num_dst, num_src, num_edges, heads, channels, features : int
        N_dst, N_src, M, H, C, D.
    """

    num_dst: int
    num_src: int
    num_edges: int
    heads: int
    channels: int
    features: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor, attributes: Tensor) -> Sizes:
        """Read the sizes off the inputs."""
        num_dst, heads, channels = query.shape
        num_edges, features = attributes.shape
        return cls(num_dst, key.shape[0], num_edges, heads, channels, features)

    @property
    def channel_block(self) -> int:
        """Channels of a tile: a power of two, 16 or more, as tensor cores want it."""
        return min(WIDEST_BLOCK, max(16, triton.next_power_of_2(self.channels)))

    @property
    def channel_blocks(self) -> int:
        """Tiles that hold all channels of a head."""
        return triton.cdiv(self.channels, self.channel_block)

    @property
    def constants(self) -> dict[str, Any]:
        """What most kernels are compiled for."""
        return {
            "HEADS": self.heads, "CHANNELS": self.channels, "FEATURES": self.features,
            "CHANNEL_BLOCK": self.channel_block, "FEATURE_BLOCK": max(16, triton.next_power_of_2(self.features)),
        }  # fmt: skip


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are taken in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def precision(dtype: torch.dtype) -> dict[str, Any]:
    """Return how the kernels compute for queries of a dtype."""
    return {"WIDE": tl.float64 if dtype == torch.float64 else tl.float32, "SPLIT": dtype == torch.bfloat16}


def rows(x: Tensor) -> Tensor:
    """Return x [N, H, C] with the channels of a node side by side; the nodes may lie apart."""
    inner = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if inner or not x.numel() else x.contiguous()


def forward(
    query: Tensor, key: Tensor, value: Tensor, attributes: Tensor, weight: Tensor, bias: Tensor | None,
    src: Tensor, dst_ptr: Tensor, *, measure: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the output [N_dst, H, C], the scores [H, M] and their normalisers [H, N_dst]."""
    sizes = Sizes.of(query, key, attributes)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    scores = query.new_empty((sizes.heads, sizes.num_edges), dtype=wide(query.dtype))
    normalisers = query.new_empty((sizes.heads, sizes.num_dst), dtype=wide(query.dtype))
    if not sizes.num_edges or not out.numel():
        return out.zero_(), scores, normalisers.zero_()
    query, key, value = rows(query), rows(key), rows(value)
    attributes, weight = attributes.contiguous(), weight.contiguous()
    of_all = sizes.constants | precision(query.dtype)
    ends = (sizes.num_dst, sizes.num_src)

    def score(tile: Tile) -> None:
        blocks, grid = grid_of(sizes.num_dst, sizes.heads, tile)
        scores_kernel[grid](
            query, key, attributes, weight, src, dst_ptr, scores, normalisers,
            sizes.num_dst, sizes.num_edges, blocks, query.stride(0), key.stride(0),
            **of_all, **cut(tile), SCALE=math.log2(math.e) / math.sqrt(sizes.channels),
        )  # fmt: skip

    def output(tile: Tile) -> None:
        blocks, grid = grid_of(sizes.num_dst, sizes.heads, tile)
        outputs_kernel[(*grid, sizes.channel_blocks)](
            value, attributes, weight, value if bias is None else bias, scores, normalisers, src, dst_ptr, out,
            sizes.num_dst, sizes.num_edges, blocks, value.stride(0),
            **of_all, **cut(tile), BIAS=bias is not None,
        )  # fmt: skip

    run_tuned("scores", score, key, sizes, ends, measure)
    run_tuned("outputs", output, value, sizes, ends, measure)
    return out, scores, normalisers


def grid_of(num_nodes: int, heads: int, tile: Tile) -> tuple[int, tuple[int]]:
    """Return the blocks of nodes, and the programs of all blocks and heads."""
    blocks = triton.cdiv(num_nodes, tile.rows // tile.lanes)
    return blocks, (blocks * heads,)


def cut(tile: Tile) -> dict[str, Any]:
    """Return what a tile sets in a kernel."""
    return {
        "ROWS": tile.rows, "LANES": tile.lanes, "HEADS_FIRST": tile.heads_first, "num_warps": tile.warps,
    }  # fmt: skip


def run_tuned(
    kernel: str, run: Callable[[Tile], None], table: Tensor, sizes: Sizes, ends: tuple[int, int], measure: bool
) -> None:
    """Choose a tile for a kernel and run it; `table` is what it gathers rows of, `ends` the nodes it walks and not."""
    work = Work(kernel, table.device, table.dtype, *ends, sizes.num_edges, sizes.heads, sizes.channels, sizes.features,
                sizes.channel_block)  # fmt: skip
    run(tuning.choose(work, run, measure=measure))
