"""On a GPU: graph attention in Triton against float64, however the work is cut, compiled, captured, checkpointed.

An error is the norm of the difference over the norm of the float64 result; of the output and the six gradients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from attention_cases import NAMES, NoisyGraphAttention
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from etesian.graph.edges import Edges
from etesian.kernels.reference import ReferenceGraphAttention
from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.tuning import Work

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 6e-3}
CUTS = tuning.candidates(Work("scores", torch.device("cuda", 0), torch.bfloat16, 1, 1, 1, 4, 64, 11, 64))
"""Every cut that may be chosen for heads of 64 channels."""

WIDTHS = [(4, 64, 11), (16, 64, 11), (1, 1, 1), (2, 8, 3), (6, 48, 16), (1, 200, 17), (16, 16, 64), (40, 8, 5)]
"""Heads, channels, edge features."""

GRAPHS = [(500, 300, 4000), (1000, 2000, 5000), (37, 29, 5000), (1, 1, 1), (1, 29, 100), (37, 1, 100), (1000, 29, 0),
          (5000, 700, 9000)]  # fmt: skip
"""Sources, destinations, edges: blocks of 16 and of 32 nodes on either side, few and many edges into a node."""


@pytest.fixture(scope="module")
def kernel() -> type[torch.nn.Module]:
    """Return the class: Triton is imported only where a test runs."""
    pytest.importorskip("triton")
    from etesian.kernels.triton_kernels.attention import TritonGraphAttention

    return TritonGraphAttention


def make_case(
    seed: int, dtype: torch.dtype, *, num_src: int = 500, num_dst: int = 300, num_edges: int = 4000, heads: int = 4,
    channels: int = 64, dim: int = 11, bias: bool = True, shuffled: bool = False,
) -> tuple[list[Tensor | None], Edges]:  # fmt: skip
    """Return inputs and edges; the last tenth of the destinations has no edge, and one node a fourth of all."""
    draw = torch.Generator().manual_seed(seed)
    dst = torch.randint(0, max(1, num_dst - num_dst // 10), (num_edges,), generator=draw)
    dst[: num_edges // 4] = 0
    src = torch.randint(0, num_src, (num_edges,), generator=draw)
    edges = Edges.from_sorted(torch.stack([src, dst.sort().values]), num_src, num_dst)
    orders = [torch.randperm(number, generator=draw) for number in (num_src, num_dst)]
    edges = edges.with_tiles(*orders if shuffled else ()).to("cuda")
    shapes = [(num_dst, heads, channels), (num_src, heads, channels), (num_src, heads, channels), (num_edges, dim),
              (heads * channels, dim), (heads * channels,)]  # fmt: skip
    inputs: list[Tensor | None] = [torch.randn(shape, generator=draw).to("cuda", dtype) for shape in shapes]
    if not bias:
        inputs[5] = None
    return [None if t is None else t.requires_grad_() for t in inputs], edges


def results(module: torch.nn.Module, inputs: list[Tensor | None], edges: Edges) -> dict[str, Tensor]:
    out = module(*inputs, edges)
    draw = torch.Generator("cuda").manual_seed(3)
    seed = torch.randn(out.shape, generator=draw, device="cuda", dtype=torch.float32).to(torch.bfloat16).to(out.dtype)
    present = [t for t in inputs if t is not None]
    return {"out": out.detach()} | dict(zip(NAMES, torch.autograd.grad(out, present, seed), strict=False))


def errors(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    assert got.keys() == want.keys()
    least = {name: 1e-3 * value.numel() ** 0.5 for name, value in want.items()}  # of gradients that are nearly 0
    return {name: ((got[name].double() - value).norm() / max(value.norm().item(), least[name])).item()
            for name, value in want.items() if value.numel()}  # fmt: skip


def exact(inputs: list[Tensor | None], edges: Edges) -> dict[str, Tensor]:
    _, heads, channels = inputs[0].shape
    wide = [None if t is None else t.detach().double().requires_grad_() for t in inputs]
    return results(ReferenceGraphAttention(heads, channels), wide, edges)


def unavoidable(inputs: list[Tensor | None], edges: Edges) -> dict[str, float]:
    """Return the errors that numbers of the inputs' dtype cost where sums cancel out, whatever computes them.

    In 16 bits, where sums are made of wider numbers: the formula in float64 with noise of half a unit in the last place
    of each number an edge. In float32: the formula in float32, whose own sums are rounded.
    """
    _, heads, channels = inputs[0].shape
    dtype, want = inputs[0].dtype, exact(inputs, edges)
    if dtype == torch.float32:
        return errors(results(ReferenceGraphAttention(heads, channels), inputs, edges), want)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in inputs]
    torch.manual_seed(0)
    draws = [errors(results(NoisyGraphAttention(heads, channels, dtype), wide, edges), want) for _ in range(8)]
    return {name: (sum(draw[name] ** 2 for draw in draws) / len(draws)) ** 0.5 for name in draws[0]}


def assert_near_float64(module: torch.nn.Module, inputs: list[Tensor | None], edges: Edges) -> None:
    assert_near_exact(results(module, inputs, edges), inputs, edges)


def assert_near_exact(got: dict[str, Tensor], inputs: list[Tensor | None], edges: Edges) -> None:
    dtype = inputs[0].dtype
    found = errors(got, exact(inputs, edges))
    above = {name: error for name, error in found.items() if not error < TOLERANCE[dtype]}
    if above:
        cost, factor = unavoidable(inputs, edges), 8 if dtype == torch.float32 else 1.5
        for name, error in above.items():
            assert error < factor * cost[name], f"{name}: {error}, where {dtype} costs {cost[name]} at the least"


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed: int, kernel: type[torch.nn.Module]) -> None:
    draw = torch.Generator().manual_seed(seed)

    def one_of(choices: list[Any]) -> Any:
        return choices[int(torch.randint(0, len(choices), (), generator=draw))]

    heads, channels, dim = one_of(WIDTHS)
    num_src, num_dst, num_edges = one_of(GRAPHS)
    inputs, edges = make_case(
        seed, one_of(list(TOLERANCE)), num_src=num_src, num_dst=num_dst, num_edges=num_edges, heads=heads,
        channels=channels, dim=dim, bias=one_of([True, False]), shuffled=one_of([True, False]),
    )  # fmt: skip
    assert_near_float64(kernel(heads, channels), inputs, edges)


@pytest.mark.parametrize("num_dst", [300, 3000])  # many edges a node and blocks of 16; few, and blocks of 32
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("cut", range(len(CUTS)), ids=lambda number: str(CUTS[number]))
def test_every_way_to_cut_the_work(cut: int, dtype: torch.dtype, num_dst: int, kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(1, dtype, num_src=num_dst, num_dst=num_dst, num_edges=9000)
    assert (edges.tiles.dst_rows, edges.tiles.src_rows) == ((16, 16) if num_dst == 300 else (32, 32))
    with tuning.fixed(CUTS[cut]):
        assert_near_float64(kernel(4, 64), inputs, edges)


def test_float64_is_refused(kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(12, torch.float64)
    with pytest.raises(TypeError, match=r"query is torch\.float64; the Triton kernels know torch\.bfloat16"):
        kernel(4, 64)(*inputs, edges)


def test_graphs_side_by_side(kernel: type[torch.nn.Module]) -> None:
    _, one = make_case(13, torch.bfloat16)
    three = one.repeated(3)
    draw = torch.Generator("cuda").manual_seed(0)
    shapes = [(900, 4, 64), (1500, 4, 64), (1500, 4, 64), (12_000, 11), (256, 11), (256,)]
    inputs = [torch.randn(shape, device="cuda", generator=draw).bfloat16().requires_grad_() for shape in shapes]
    assert_near_float64(kernel(4, 64), inputs, three)


def test_a_node_of_ten_thousand_edges(kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(2, torch.bfloat16, num_edges=40_000)
    assert int((edges.dst_ptr[1:] - edges.dst_ptr[:-1]).max()) >= 10_000
    assert_near_float64(kernel(4, 64), inputs, edges)


def test_more_than_two_to_the_31_numbers(kernel: type[torch.nn.Module]) -> None:
    """The last nodes of a tensor of 2.2e9 numbers get what they would get alone."""
    heads, channels, dim, num = 16, 64, 3, 2_150_000
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("wants 60 GB")
    node = torch.arange(num)
    edges = Edges.from_sorted(torch.stack([node, node]), num, num).with_tiles().to("cuda")
    draw = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(num, heads, channels, device="cuda", dtype=torch.bfloat16, generator=draw)
    assert query.numel() > 2**31
    query.requires_grad_()
    attributes = torch.randn(num, dim, device="cuda", dtype=torch.bfloat16, generator=draw)
    weight = torch.randn(heads * channels, dim, device="cuda", dtype=torch.bfloat16, generator=draw)
    out = kernel(heads, channels)(query, query, query, attributes, weight, None, edges)
    last = slice(num - 100, num)
    expected = query.detach()[last].float() + (attributes[last].float() @ weight.float().T).view(-1, heads, channels)
    torch.testing.assert_close(out[last].float(), expected, rtol=1e-2, atol=1e-2)
    (gradient,) = torch.autograd.grad(out, query, torch.ones_like(out))
    torch.testing.assert_close(gradient[last].float(), torch.ones_like(expected), rtol=1e-2, atol=1e-2)


def test_the_same_input_gives_the_same_bits(kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(4, torch.bfloat16, num_dst=5000, num_src=2000, num_edges=100_000, heads=16)
    first = results(kernel(16, 64), inputs, edges)
    for _ in range(5):
        again = results(kernel(16, 64), inputs, edges)
        assert all(torch.equal(again[name], value) for name, value in first.items())


@pytest.mark.parametrize("bias", [True, False])
def test_the_operators_are_whole(bias: bool, kernel: type[torch.nn.Module]) -> None:
    from etesian.kernels.triton_kernels.ops import graph_attention

    inputs, edges = make_case(5, torch.float32, num_edges=500, channels=8, bias=bias)
    graph = (edges.dst, *edges.tiles.tensors(), edges.most)
    torch.library.opcheck(graph_attention, (*inputs, *graph, False))


def test_it_compiles_to_one_graph(kernel: type[torch.nn.Module]) -> None:
    torch._dynamo.reset()
    inputs, edges = make_case(6, torch.bfloat16)
    module = kernel(4, 64)
    want = results(module, inputs, edges)
    module.forward = torch.compile(module.forward, fullgraph=True)
    got = results(module, inputs, edges)
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_a_captured_graph_runs_on_new_numbers(kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(7, torch.bfloat16)
    module, seed = kernel(4, 64), torch.ones_like(inputs[0])

    def step() -> list[Tensor]:
        out = module(*inputs, edges)
        return [out, *torch.autograd.grad(out, inputs, seed)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for tensor in inputs:
            tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(captured, step(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_with_wide_parameters(dtype: torch.dtype, kernel: type[torch.nn.Module]) -> None:
    """Autocast narrows attributes, weight and bias, as it does those of any projection."""
    inputs, edges = make_case(8, torch.float32)
    inputs[:3] = [t.detach().to(dtype).requires_grad_() for t in inputs[:3]]
    with torch.autocast("cuda", dtype=dtype):
        got = results(kernel(4, 64), inputs, edges)
    assert [got[name].dtype for name in NAMES] == [t.dtype for t in inputs]
    assert_near_exact(got, [t.detach().to(dtype) for t in inputs], edges)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant: bool, kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(9, torch.bfloat16)
    module = kernel(4, 64)
    want = torch.autograd.grad(module(*inputs, edges).float().square().sum(), inputs)
    again = [t.detach().requires_grad_() for t in inputs]
    checkpoint(module, *again, edges, use_reentrant=reentrant).float().square().sum().backward()
    assert all(torch.equal(mine.grad, theirs) for mine, theirs in zip(again, want, strict=True))


def test_memory_does_not_hold_an_edge_projection(kernel: type[torch.nn.Module]) -> None:
    heads, channels, num_edges = 16, 64, 400_000
    inputs, edges = make_case(10, torch.bfloat16, num_edges=num_edges, heads=heads)
    module = kernel(heads, channels)
    results(module, inputs, edges)  # compiles
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(module, inputs, edges)
    used = torch.cuda.max_memory_allocated() - before
    assert used < num_edges * heads * channels * 2 / 4  # bytes: a fourth of one projected tensor


def test_what_was_measured_is_kept(tmp_path: Path, kernel: type[torch.nn.Module]) -> None:
    inputs, edges = make_case(11, torch.bfloat16)
    try:
        tuning.keep_in(tmp_path)
        first = results(kernel(4, 64, tune=True), inputs, edges)
        (file,) = (tmp_path / "cuts").iterdir()
        kept = json.loads(file.read_text())
        assert sorted(key.split()[0] for key in kept) == sorted(tuning.KERNELS)
        stamp = file.stat().st_mtime_ns
        tuning.keep_in(tmp_path)  # as in a new process
        again = results(kernel(4, 64, tune=True), inputs, edges)
        assert file.stat().st_mtime_ns == stamp
    finally:
        tuning.keep_in(None)
    assert all(torch.equal(again[name], value) for name, value in first.items())
