"""Inputs of graph attention, and what a backend makes of them: ``from attention_cases import make_edges``."""

from __future__ import annotations

import torch

from etesian.graph.edges import Edges

NAMES = ("query", "key", "value", "edge_attr", "edge_weight", "edge_bias")


def make_edges(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> Edges:
    index = torch.tensor(sorted(pairs, key=lambda pair: (pair[1], pair[0])), dtype=torch.long).reshape(-1, 2).T
    return Edges.from_sorted(index, num_src, num_dst).with_tiles()


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


def assert_agree(
    backends: list[type], reference: type, edges: Edges, heads: int, channels: int, dim: int, *, bias: bool,
    scale: float = 1.0,
) -> None:  # fmt: skip
    """Compare results and gradients of each backend with those of the reference, in float64."""
    inputs = make_inputs(edges, heads, channels, dim, bias=bias, scale=scale)
    expected = outputs_and_gradients(reference, inputs, edges, heads, channels)
    assert expected["out"].isfinite().all()
    for backend in backends:
        got = outputs_and_gradients(backend, inputs, edges, heads, channels)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert got[name].shape == value.shape
            difference = (got[name] - value).abs().max().item() if value.numel() else 0.0
            assert difference < 1e-10 * max(1.0, scale), f"{backend.__name__}: {name} differs by {difference}"
