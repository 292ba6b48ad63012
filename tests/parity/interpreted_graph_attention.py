"""Graph attention in Triton against the formula, under Triton's interpreter: run by ``test_triton_graph_attention.py``.

In float64 the two agree to rounding, so nothing of the mathematics hides behind a tolerance. The interpreter cuts
numbers off where it makes bfloat16 of them, in place of rounding.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import attention_cases
import pytest
import torch
from attention_cases import NAMES, make_edges, make_inputs, outputs_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from etesian.graph.edges import Edges
from etesian.kernels.reference import ReferenceGraphAttention
from etesian.kernels.triton_kernels import launch, tuning
from etesian.kernels.triton_kernels.attention import TritonGraphAttention
from etesian.kernels.triton_kernels.ops import graph_attention, graph_attention_backward
from etesian.kernels.triton_kernels.tuning import Cut, Work

ANY = Work("scores", torch.device("cpu"), torch.float64, 9, 9, 9, 2, 5, 3, 16)
CUTS = list({cut.heads_first: cut for cut in tuning.candidates(ANY)}.values())
"""The cuts that may be chosen, as the interpreter tells them apart: it has neither warps nor stages."""


def some_edges() -> Edges:
    """18 nodes with 0 to 50 edges into each; the last has none, and neither have two of 15 sources.

    Blocks of 16 rows on both sides, the last of them not full; up to 16 edges of a node at once, 50 in turns.
    """
    pairs = [(i % 13, i // 4) for i in range(60)] + [(i % 11, 16) for i in range(50)]
    return make_edges(pairs, 15, 18)


def few_edges() -> Edges:
    """40 nodes with 2 edges into each from 33: blocks of 32 rows on both sides, all edges of a node at once."""
    return make_edges([(i % 33, i // 2) for i in range(80)], 33, 40)


def many_edges() -> Edges:
    """3 nodes with 20, 33 and 70 edges into each from 70: blocks of 16 destinations, 32 sources; 32 edges at once."""
    return make_edges([(i % 9, 0) for i in range(20)] + [(i % 7, 1) for i in range(33)] + [(i, 2) for i in range(70)],
                      70, 3)  # fmt: skip


def mixed_blocks() -> Edges:
    """20 nodes with 3 edges into each from 5: blocks of 32 destinations, of 16 sources."""
    return make_edges([(i % 5, i // 3) for i in range(60)], 5, 20)


GRAPHS = {"some": some_edges, "few": few_edges, "many": many_edges, "mixed": mixed_blocks}


def test_the_graphs_are_what_they_are_for() -> None:
    made = {name: make().tiles for name, make in GRAPHS.items()}
    rows = {name: (tiles.dst_rows, tiles.src_rows) for name, tiles in made.items()}
    assert rows == {"some": (16, 16), "few": (32, 32), "many": (16, 32), "mixed": (32, 16)}
    sizes = {name: launch.Sizes.of(*(make_inputs(make(), 1, 1, 1, bias=False)[i] for i in (0, 1, 3)))
             for name, make in GRAPHS.items()}  # fmt: skip
    calls = {name: launch.Call(sizes[name], made[name], make().most, False) for name, make in GRAPHS.items()}
    at_once = {name: tuple(call.constants("EDGES ONCE").values()) for name, call in calls.items()}
    assert at_once == {"some": (16, False), "few": (16, True), "many": (32, False), "mixed": (16, True)}


assert_exact = functools.partial(attention_cases.assert_agree, [TritonGraphAttention], ReferenceGraphAttention)


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    num_src, num_dst = draw(st.integers(1, 7)), draw(st.integers(1, 40))
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return make_edges(draw(st.lists(pair, max_size=60)), num_src, num_dst)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(graphs(), st.integers(1, 3), st.integers(1, 20), st.integers(1, 18), st.booleans(), st.sampled_from(CUTS))
def test_any_graph(edges: Edges, heads: int, channels: int, dim: int, bias: bool, cut: Cut) -> None:
    with tuning.fixed(cut):
        assert_exact(edges, heads, channels, dim, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("pairs", "num_src", "num_dst"),
    [
        pytest.param([(0, 0), (1, 0), (2, 2)], 3, 3, id="isolated destination"),
        pytest.param([(0, 0), (0, 1), (2, 1)], 3, 2, id="isolated source"),
        pytest.param([], 4, 3, id="no edges"),
        pytest.param([], 4, 0, id="no destinations"),
        pytest.param([], 0, 2, id="no sources"),
        pytest.param([(0, 0)], 1, 1, id="one node"),
        pytest.param([(0, 0)] * 3 + [(1, 0)], 2, 1, id="parallel edges"),
        pytest.param([(i % 40, 0) for i in range(300)] + [(3, 1)], 40, 3, id="300 edges into a node"),
        pytest.param([(0, i % 40) for i in range(300)], 2, 40, id="300 edges from a node"),
    ],
)
def test_special_graphs(pairs: list, num_src: int, num_dst: int, bias: bool) -> None:
    assert_exact(make_edges(pairs, num_src, num_dst), 2, 4, 5, bias=bias)


@pytest.mark.parametrize(
    ("heads", "channels", "dim"), [(6, 48, 11), (1, 1, 1), (2, 16, 64), (1, 200, 17), (3, 130, 2), (16, 8, 1)]
)
def test_any_width(heads: int, channels: int, dim: int) -> None:
    assert_exact(some_edges(), heads, channels, dim, bias=True)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_every_way_to_cut_the_work(cut: Cut, graph: str) -> None:
    with tuning.fixed(cut):
        assert_exact(GRAPHS[graph](), 2, 5, 3, bias=True)


@pytest.mark.parametrize("graph", GRAPHS)
def test_nodes_in_any_order(graph: str) -> None:
    edges = GRAPHS[graph]()
    draw = torch.Generator().manual_seed(1)
    orders = (torch.randperm(number, generator=draw) for number in (edges.num_src, edges.num_dst))
    assert_exact(edges.with_tiles(*orders), 2, 5, 3, bias=True)


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_side_by_side(graph: str) -> None:
    assert_exact(GRAPHS[graph]().repeated(3), 2, 5, 3, bias=True)


@pytest.mark.parametrize("graph", GRAPHS)
def test_marks_of_32_bits(graph: str) -> None:
    """As a graph has them where more than 2^15 edges lead into a node."""
    edges = GRAPHS[graph]()
    assert edges.tiles.dst_edges.dtype == torch.int16
    assert_exact(replace(edges, tiles=replace(edges.tiles, dst_edges=edges.tiles.dst_edges.int())), 2, 5, 3, bias=True)


@pytest.mark.parametrize("graph", GRAPHS)
def test_large_scores(graph: str) -> None:
    assert_exact(GRAPHS[graph](), 2, 8, 3, bias=True, scale=20.0)


def test_ids_of_32_bits() -> None:
    edges = some_edges()
    ids = {name: getattr(edges, name).int() for name in ("src", "dst", "dst_ptr", "src_perm", "src_ptr")}
    inputs = make_inputs(edges, 2, 8, 3, bias=True)
    wide = outputs_and_gradients(TritonGraphAttention, inputs, edges, 2, 8)
    for narrow_edges in (replace(edges, **ids), replace(edges, tiles=None, **ids).with_tiles()):
        narrow = outputs_and_gradients(TritonGraphAttention, inputs, narrow_edges, 2, 8)
        assert all(torch.equal(narrow[name], value) for name, value in wide.items())


def test_parts_of_one_product() -> None:
    """Query, key and value side by side in memory, as one Linear returns them; and a gradient that is an expansion."""
    edges = make_edges([(i % 13, i // 4) for i in range(52)], 13, 13)
    inputs = make_inputs(edges, 2, 8, 3, bias=True)
    together = torch.stack([t.detach() for t in inputs[:3]], dim=1).requires_grad_()  # [N, 3, H, C]
    parts = together.unbind(1)
    assert not parts[0].is_contiguous()
    kernels = ReferenceGraphAttention(2, 8), TritonGraphAttention(2, 8)
    want, got = (torch.autograd.grad(kernel(*parts, *inputs[3:], edges).sum(), together)[0] for kernel in kernels)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_narrow_numbers(dtype: torch.dtype) -> None:
    edges = some_edges()
    exact = make_inputs(edges, 2, 16, 5, bias=True)
    inputs = [t.detach().to(dtype if position < 3 else torch.float32) for position, t in enumerate(exact)]
    inputs = [t.requires_grad_() for t in inputs]
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        got = outputs_and_gradients(TritonGraphAttention, inputs, edges, 2, 16)
    assert got["out"].dtype == dtype
    assert [got[name].dtype for name in NAMES] == [t.dtype for t in inputs]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    expected = outputs_and_gradients(ReferenceGraphAttention, wide, edges, 2, 16)
    for name, value in expected.items():
        relative = ((got[name].double() - value).norm() / value.norm()).item()
        # The interpreter cuts bfloat16 off, at twice the error of rounding, of alpha and dS as well as of the results.
        assert relative < {torch.float32: 20, torch.float16: 1, torch.bfloat16: 1.5}[dtype] * torch.finfo(dtype).eps, (
            name
        )


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (3,), (4,), (5,), (0, 3), (3, 4)], ids=str)
@pytest.mark.parametrize(("graph", "channels"), [("some", 5), ("few", 5), ("some", 130)])
def test_some_gradients_only(asked: tuple[int, ...], graph: str, channels: int) -> None:
    edges = GRAPHS[graph]()
    inputs = make_inputs(edges, 2, channels, 3, bias=True)
    everything = torch.autograd.grad(TritonGraphAttention(2, channels)(*inputs, edges).square().sum(), inputs)
    fewer = [t.detach().requires_grad_(position in asked) for position, t in enumerate(inputs)]
    out = TritonGraphAttention(2, channels)(*fewer, edges).square().sum()
    got = torch.autograd.grad(out, [fewer[position] for position in asked])
    assert all(torch.equal(one, everything[position]) for one, position in zip(got, asked, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_operators_are_whole(dtype: torch.dtype, bias: bool) -> None:
    edges = some_edges()
    inputs = [None if t is None else t.detach().to(dtype) for t in make_inputs(edges, 2, 4, 3, bias=bias)]
    graph = (edges.dst, *edges.tiles.tensors(), edges.most)
    leaves = [None if t is None else t.clone().requires_grad_() for t in inputs]
    torch.library.opcheck(graph_attention, (*leaves, *graph, False))
    out, alphas, projected = graph_attention(*inputs, *graph, False)
    assert (out.dtype, alphas.dtype, projected.dtype) == (dtype,) * 3
    assert (alphas.shape, projected.shape) == ((2, edges.num_edges), (edges.num_dst, 2, 16))
    for needed in ([True] * 4, [False, False, True, False], [False, True, False, True]):
        arguments = (torch.ones_like(out), alphas, projected, *inputs, *graph, needed, False)
        torch.library.opcheck(graph_attention_backward, arguments)


@pytest.mark.parametrize(("pairs", "num_src", "num_dst"), [([], 4, 3), ([], 0, 2), ([], 2, 0)], ids=str)
def test_the_operators_are_whole_without_edges(pairs: list, num_src: int, num_dst: int) -> None:
    edges = make_edges(pairs, num_src, num_dst)
    inputs = [t.detach().float().requires_grad_() for t in make_inputs(edges, 2, 4, 3, bias=True)]
    torch.library.opcheck(graph_attention, (*inputs, edges.dst, *edges.tiles.tensors(), edges.most, False))


def test_it_compiles_to_one_graph() -> None:
    edges = some_edges()
    inputs = make_inputs(edges, 2, 3, 4, bias=True)
    module = TritonGraphAttention(2, 3)
    expected = torch.autograd.grad(module(*inputs, edges).square().sum(), inputs)
    compiled = torch.compile(module.forward, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(*inputs, edges).square().sum(), inputs)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant: bool) -> None:
    edges = some_edges()
    inputs = make_inputs(edges, 2, 3, 4, bias=True)
    module = TritonGraphAttention(2, 3)
    expected = torch.autograd.grad(module(*inputs, edges).square().sum(), inputs)
    again = [t.detach().requires_grad_() for t in inputs]
    checkpoint(module, *again, edges, use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(mine.grad, theirs) for mine, theirs in zip(again, expected, strict=True))


@pytest.mark.parametrize("channels", [16, 64])
def test_what_is_kept_grows_with_heads_not_channels(channels: int) -> None:
    """Beside inputs and edges: alpha of each edge and head, and q W of each node and head, D with zeros behind."""
    edges = some_edges()
    inputs = make_inputs(edges, 4, channels, 3, bias=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        TritonGraphAttention(4, channels)(*inputs, edges)
    given = {t.data_ptr() for t in (*inputs, edges.dst, *edges.tiles.tensors())}
    kept = [tuple(t.shape) for t in saved if t.data_ptr() not in given]
    assert sorted(kept) == sorted([(4, edges.num_edges), (edges.num_dst, 4, 16)])


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_same_input_gives_the_same_bits(graph: str) -> None:
    edges = GRAPHS[graph]()
    inputs = make_inputs(edges, 2, 8, 3, bias=True)
    first, again = (outputs_and_gradients(TritonGraphAttention, inputs, edges, 2, 8) for _ in range(2))
    assert all(torch.equal(again[name], value) for name, value in first.items())


def test_edges_without_tiles_are_refused() -> None:
    edges = some_edges()
    with pytest.raises(ValueError, match=r"the edges are not in tiles: edges\.with_tiles\(\) makes them"):
        TritonGraphAttention(2, 4)(*make_inputs(edges, 2, 4, 3, bias=True), replace(edges, tiles=None))


def test_another_device_is_refused() -> None:
    edges = some_edges()
    inputs = make_inputs(edges, 2, 4, 3, bias=True)
    with pytest.raises(ValueError, match="edge_attr is on meta, the query on cpu"):
        TritonGraphAttention(2, 4)(*inputs[:3], inputs[3].to("meta"), *inputs[4:], edges)
    with pytest.raises(ValueError, match="the edges are on meta, the query on cpu"):
        TritonGraphAttention(2, 4)(*inputs, edges.to("meta"))


@pytest.mark.parametrize("position", range(6))
def test_another_shape_is_refused(position: int) -> None:
    edges = some_edges()
    inputs = make_inputs(edges, 2, 4, 3, bias=True)
    inputs[position] = torch.cat([inputs[position], inputs[position][:1]])
    with pytest.raises(ValueError, match=f"{NAMES[position]} has the shape"):
        TritonGraphAttention(2, 4)(*inputs, edges)


def test_more_edges_than_are_counted_are_refused() -> None:
    edges = some_edges()
    with pytest.raises(ValueError, match="more than 2147483647 nodes or edges"):
        TritonGraphAttention(2, 4)(*make_inputs(edges, 2, 4, 3, bias=True), replace(edges, num_src=2**31))


def test_another_dtype_is_refused() -> None:
    edges = some_edges()
    inputs = make_inputs(edges, 2, 4, 3, bias=True)
    with pytest.raises(TypeError, match=r"edge_attr is torch\.int64"):
        TritonGraphAttention(2, 4)(*inputs[:3], inputs[3].long(), *inputs[4:], edges)
