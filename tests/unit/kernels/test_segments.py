"""Rows at the ends of edges and sums of edges a node: values, gradients, dtypes, edges of all shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etesian.graph.edges import Edges
from etesian.kernels.segments import rows_of_destinations, rows_of_sources, sums_into_destinations


def make_edges() -> Edges:
    """Return edges among 4 sources and 5 destinations; source 3 and destinations 1 and 4 have none."""
    return Edges.from_sorted(torch.tensor([[0, 2, 1, 2, 2], [0, 0, 2, 2, 3]]), 4, 5)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)


def test_rows_and_sums() -> None:
    edges, nodes, of_edges = make_edges(), random(5, 3), random(5, 3)
    assert torch.equal(rows_of_sources(nodes[:4], edges), nodes[edges.src])
    assert torch.equal(rows_of_destinations(nodes, edges), nodes[edges.dst])
    expected = torch.zeros(5, 3, dtype=torch.float64).index_add(0, edges.dst, of_edges)
    torch.testing.assert_close(sums_into_destinations(of_edges, edges), expected)


@pytest.mark.parametrize(
    ("operation", "rows"), [(rows_of_sources, 4), (rows_of_destinations, 5), (sums_into_destinations, 5)]
)
def test_gradients(operation: object, rows: int) -> None:
    assert torch.autograd.gradcheck(lambda x: operation(x, make_edges()), random(rows, 3))


def test_16_bits_are_added_up_in_32() -> None:
    edges = Edges.from_sorted(torch.stack([torch.arange(4096), torch.zeros(4096, dtype=torch.long)]), 4096, 1)
    ones = torch.ones(4096, 2, dtype=torch.bfloat16)
    assert sums_into_destinations(ones, edges).tolist() == [[4096, 4096]]  # in bfloat16 it would stop at 256


def test_without_edges() -> None:
    edges = Edges.from_sorted(torch.empty(2, 0, dtype=torch.long), 4, 5)
    x = random(0, 3)
    sums_into_destinations(x, edges).sum().backward()
    assert sums_into_destinations(x, edges).tolist() == [[0.0] * 3] * 5
    nodes = random(4, 3)
    rows_of_sources(nodes, edges).sum().backward()
    assert nodes.grad is not None
    assert not nodes.grad.any()
