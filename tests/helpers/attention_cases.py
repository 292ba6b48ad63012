"""Inputs of graph attention, and what a backend makes of them: ``from attention_cases import make_edges``."""

from __future__ import annotations

from typing import Any

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


class _Noise(torch.autograd.Function):
    """Disturbs numbers, and their gradient, as much as rounding them to a dtype may."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.half = torch.finfo(dtype).eps / 2
        return x * (1 + (torch.rand_like(x) * 2 - 1) * ctx.half)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * (1 + (torch.rand_like(gradient) * 2 - 1) * ctx.half), None


class NoisyGraphAttention(torch.nn.Module):
    """The formula in float64, where what belongs to an edge or is returned is disturbed, gradients too.

    Its error is what keeping the projection, score and alpha of an edge in a dtype costs, whoever computes them. Where
    sums cancel out (the gradients of the scores of a node add up to nothing) it is far above the dtype's precision.
    """

    def __init__(self, num_heads: int, head_channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.channels, self.dtype = num_heads, head_channels, dtype

    def forward(self, q: Any, k: Any, v: Any, attr: Any, weight: Any, bias: Any, edges: Edges) -> torch.Tensor:
        projected = _Noise.apply(torch.nn.functional.linear(attr, weight, bias), self.dtype)
        projected = projected.view(-1, self.heads, self.channels)
        score = (q[edges.dst] * (k[edges.src] + projected)).sum(-1) / self.channels**0.5
        score = _Noise.apply(score, self.dtype)
        highest = score.new_full((edges.num_dst, self.heads), -torch.inf)
        highest = highest.index_reduce(0, edges.dst, score.detach(), "amax")
        power = (score - highest[edges.dst]).exp()
        total = torch.zeros_like(highest).index_add(0, edges.dst, power)
        alpha = _Noise.apply(power / total[edges.dst], self.dtype)
        message = alpha[..., None] * (v[edges.src] + projected)
        out = message.new_zeros(edges.num_dst, self.heads, self.channels).index_add(0, edges.dst, message)
        return _Noise.apply(out, self.dtype)
