"""The factored graph attention as one operator is the factored graph attention."""

from __future__ import annotations

import pytest
import torch

from etesian.graph.edges import Edges
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.factored_ops import factored_graph_attention


def case(num_edges: int, *, bias: bool = True) -> tuple[list[torch.Tensor | None], Edges]:
    generator = torch.Generator().manual_seed(0)
    dst = torch.randint(0, 6, (num_edges,), generator=generator).sort().values
    src = torch.randint(0, 5, (num_edges,), generator=generator)
    shapes = [(7, 2, 4), (5, 2, 4), (5, 2, 4), (num_edges, 3), (8, 3), (8,)]
    tensors: list[torch.Tensor | None] = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    ]
    return [*tensors[:5], tensors[5] if bias else None], Edges.from_sorted(torch.stack([src, dst]), 5, 7)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_edges", [0, 20])
def test_output_and_gradients_are_the_same(num_edges: int, bias: bool) -> None:
    tensors, edges = case(num_edges, bias=bias)
    kernel, results = FactoredGraphAttention(2, 4), []
    for whole in (False, True):
        kernel.as_one_operator = whole
        out = kernel(*tensors, edges)
        wanted = [tensor for tensor in tensors if tensor is not None]
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        results.append([out, *torch.autograd.grad((out * weight).sum(), wanted)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_only_what_is_asked_for_is_computed() -> None:
    tensors, edges = case(20)
    kernel = FactoredGraphAttention(2, 4)
    kernel.as_one_operator = True
    (alone,) = torch.autograd.grad(kernel(*tensors, edges).sum(), [tensors[2]])
    everything = torch.autograd.grad(kernel(*tensors, edges).sum(), tensors)
    assert torch.equal(alone, everything[2])


@pytest.mark.parametrize("num_edges", [0, 20])
def test_it_keeps_the_rules_of_operators(num_edges: int) -> None:
    tensors, edges = case(num_edges)
    torch.library.opcheck(
        factored_graph_attention, (*tensors, edges.src, edges.dst, edges.dst_ptr, edges.src_perm, edges.src_ptr)
    )
