"""The graph-attention backends compute the same function, outputs and gradients."""

from __future__ import annotations

import copy
import functools

import attention_cases
import pytest
import torch
from attention_cases import NAMES, make_edges, make_inputs, outputs_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from etesian.graph.edges import Edges
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.pyg import PygGraphAttention
from etesian.kernels.reference import ReferenceGraphAttention

OTHERS = [FactoredGraphAttention, PygGraphAttention]


assert_agree = functools.partial(attention_cases.assert_agree, OTHERS, ReferenceGraphAttention)


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    num_src, num_dst = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return make_edges(draw(st.lists(pair, max_size=25)), num_src, num_dst)  # several edges of a pair are allowed


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_backends_agree_on_any_graph(edges: Edges, heads: int, channels: int, dim: int, bias: bool) -> None:
    assert_agree(edges, heads, channels, dim, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("pairs", "num_src", "num_dst"),
    [
        pytest.param([(0, 0), (1, 0), (2, 2)], 3, 3, id="isolated destination"),
        pytest.param([(0, 0), (0, 1), (2, 1)], 3, 2, id="isolated source"),
        pytest.param([], 4, 3, id="no edges"),
        pytest.param([(0, 0)], 1, 1, id="one node"),
        pytest.param([(0, 0)] * 3 + [(1, 0)], 2, 1, id="parallel edges"),
        pytest.param([(i % 40, i // 9) for i in range(270)], 40, 31, id="many"),
    ],
)
def test_backends_agree_on_special_graphs(pairs: list, num_src: int, num_dst: int, bias: bool) -> None:
    assert_agree(make_edges(pairs, num_src, num_dst), 3, 4, 5, bias=bias)


def test_backends_agree_with_odd_head_width() -> None:
    assert_agree(make_edges([(i % 13, i // 4) for i in range(60)], 13, 17), 6, 48 // 6, 11, bias=True)
    assert_agree(make_edges([(i % 13, i // 4) for i in range(60)], 13, 17), 6, 48, 11, bias=True)


def test_agreement_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.kernels.factored.CHUNK_ON_CPU", 40)  # three edges at a time
    assert_agree(make_edges([(i % 7, i // 5) for i in range(52)], 7, 12), 3, 4, 5, bias=True)


@pytest.mark.parametrize("backend", [ReferenceGraphAttention, *OTHERS])
def test_large_scores_do_not_overflow(backend: type) -> None:
    edges = make_edges([(0, 0), (1, 0), (1, 1)], 2, 2)
    inputs = make_inputs(edges, 2, 3, 4, bias=True, scale=1e4)
    for name, value in outputs_and_gradients(backend, inputs, edges, 2, 3).items():
        assert value.isfinite().all(), name


@pytest.mark.parametrize("backend", [ReferenceGraphAttention, *OTHERS])
def test_a_node_without_edges_gets_zero_and_not_the_bias(backend: type) -> None:
    edges = make_edges([(0, 0), (1, 2)], 2, 3)
    inputs = make_inputs(edges, 2, 3, 4, bias=True)
    out = backend(2, 3)(*inputs, edges)
    assert (out[1] == 0).all()
    assert (out[[0, 2]] != 0).any(dim=(1, 2)).all()


@pytest.mark.parametrize("backend", [ReferenceGraphAttention, *OTHERS])
def test_one_edge_passes_value_and_projection_on(backend: type) -> None:
    """With one edge alpha is 1: out = v + W a + b, whatever the query is."""
    edges = make_edges([(1, 0)], 2, 1)
    query, key, value, edge_attr, weight, bias = make_inputs(edges, 2, 3, 4, bias=True)
    out = backend(2, 3)(query, key, value, edge_attr, weight, bias, edges)
    torch.testing.assert_close(out, (value[1] + (weight @ edge_attr[0] + bias).view(2, 3))[None])


@pytest.mark.parametrize("backend", [ReferenceGraphAttention, *OTHERS])
@pytest.mark.parametrize("bias", [True, False])
def test_gradcheck(backend: type, bias: bool) -> None:
    edges = make_edges([(0, 0), (1, 0), (2, 0), (2, 2), (0, 2)], 4, 3)
    inputs = make_inputs(edges, 2, 3, 2, bias=bias)
    module = backend(2, 3)
    assert torch.autograd.gradcheck(lambda *tensors: module(*tensors, edges), inputs)


def test_gradients_are_formed_for_what_needs_them_only() -> None:
    edges = make_edges([(0, 0), (1, 0), (1, 1)], 2, 2)
    inputs = make_inputs(edges, 2, 3, 4, bias=True)
    expected = outputs_and_gradients(FactoredGraphAttention, inputs, edges, 2, 3)
    for kept in range(6):
        some = [copy.copy(t.detach()).requires_grad_(position == kept) for position, t in enumerate(inputs)]
        out = FactoredGraphAttention(2, 3)(*some, edges)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(
            out.dtype
        )
        out.backward(cotangent)
        assert [t.grad is not None for t in some] == [position == kept for position in range(6)]
        torch.testing.assert_close(some[kept].grad, expected[NAMES[kept]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_factored_under_autocast_keeps_dtypes_and_accuracy(dtype: torch.dtype) -> None:
    edges = make_edges([(i % 13, i // 4) for i in range(60)], 13, 17)
    exact = make_inputs(edges, 2, 8, 5, bias=True)
    inputs = [t.detach().to(dtype if position < 3 else torch.float32) for position, t in enumerate(exact)]
    inputs = [t.requires_grad_() for t in inputs]
    with torch.autocast("cpu", dtype=dtype):
        got = outputs_and_gradients(FactoredGraphAttention, inputs, edges, 2, 8)
    assert got["out"].dtype == dtype
    assert [got[name].dtype for name in NAMES] == [t.dtype for t in inputs]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    expected = outputs_and_gradients(ReferenceGraphAttention, wide, edges, 2, 8)
    for name, value in expected.items():
        relative = ((got[name].double() - value).norm() / value.norm()).item()
        assert relative < 4 * torch.finfo(dtype).eps, name


def test_factored_saves_no_edge_projection() -> None:
    """What is kept for the backward pass beside the inputs is alpha, M H numbers."""
    heads, channels = 4, 16
    edges = make_edges([(i % 50, i // 40) for i in range(2000)], 50, 50)
    inputs = make_inputs(edges, heads, channels, 3, bias=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        FactoredGraphAttention(heads, channels)(*inputs, edges)
    given = {t.data_ptr() for t in inputs}
    kept = sum(t.numel() for t in saved if t.data_ptr() not in given)
    assert kept == edges.num_edges * heads


def test_factored_compiles_to_one_graph() -> None:
    edges = make_edges([(i % 7, i // 5) for i in range(52)], 7, 12)
    inputs = make_inputs(edges, 2, 3, 4, bias=True)
    module = FactoredGraphAttention(2, 3)
    expected = torch.autograd.grad(module(*inputs, edges).square().sum(), inputs)
    compiled = torch.compile(module.forward, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(*inputs, edges).square().sum(), inputs)
    for name, mine, theirs in zip(NAMES, got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
