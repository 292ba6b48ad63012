"""Inputs of graph attention, and what a backend makes of them: ``from attention_cases import make_edges``."""

from __future__ import annotations

import torch

from etesian.graph.edges import Edges

NAMES = ("query", "key", "value", "edge_attr", "edge_weight", "edge_bias")


def make_edges(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> Edges:
    index = torch.tensor(sorted(pairs, key=lambda pair: (pair[1], pair[0])), dtype=torch.long).reshape(-1, 2).T
    return Edges.from_sorted(index, num_src, num_dst)


def make_inputs(
    edges: Edges, heads: int, channels: int, dim: int, *, bias: bool, seed: int = 0, scale: float = 1.0
) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (edges.num_dst, heads, channels),
        (edges.num_src, heads, channels),
        (edges.num_src, heads, channels),
        (edges.num_edges, dim),
        (heads * channels, dim),
        (heads * channels,),
    ]
    inputs: list[torch.Tensor | None] = [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).requires_grad_() for shape in shapes
    ]
    if not bias:
        inputs[5] = None
    return inputs


def outputs_and_gradients(backend: type, inputs: list, edges: Edges, heads: int, channels: int) -> dict:
    out = backend(heads, channels)(*inputs, edges)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    present = [t for t in inputs if t is not None]
    gradients = torch.autograd.grad(out, present, cotangent)
    return {"out": out.detach()} | dict(zip(NAMES, gradients, strict=False))
