"""Edges in tiles: every edge once in both views, in its block, row and slot."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etesian.graph.edges import Edges
from etesian.graph.icosphere import build_icosphere
from etesian.graph.tiles import FEW, MANY, SLOTS, EdgeTiles, spatial_order

Order = Tensor | None


def sorted_edges(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> Edges:
    index = torch.tensor(sorted(pairs, key=lambda pair: pair[1]), dtype=torch.long).reshape(-1, 2).T
    return Edges.from_sorted(index, num_src, num_dst)


def shuffled(number: int, seed: int) -> Tensor:
    return torch.randperm(number, generator=torch.Generator().manual_seed(seed))


def found(nodes: Tensor, pointers: Tensor, slots: Tensor, marks: Tensor) -> list[tuple[int, int, int]]:
    """Return node of the block, node at the other end and mark of every edge that one view holds."""
    rows = marks.shape[1]
    block = torch.arange(pointers.numel() - 1).repeat_interleave(pointers.long().diff())
    tile, row, slot = (marks >= 0).nonzero(as_tuple=True)
    node, other = nodes[block[tile] * rows + row], slots[tile, slot]
    return list(zip(node.tolist(), other.tolist(), marks[tile, row, slot].tolist(), strict=True))


def assert_holds(tiles: EdgeTiles, edges: Edges) -> None:
    """Compare what both views hold with the edges themselves."""
    src, dst, pointers = edges.src.tolist(), edges.dst.tolist(), edges.dst_ptr.tolist()
    by_dst = found(tiles.dst_nodes, tiles.dst_ptr, tiles.dst_slots, tiles.dst_edges)
    got = Counter((other, node, pointers[node] + number) for node, other, number in by_dst)
    assert got == Counter(zip(src, dst, range(len(src)), strict=True))
    by_src = found(tiles.src_nodes, tiles.src_ptr, tiles.src_slots, tiles.src_edges)
    assert Counter((node, other, edge) for node, other, edge in by_src) == got
    assert tiles.edge_ptr.tolist() == pointers


def assert_well_formed(nodes: Tensor, pointers: Tensor, slots: Tensor, marks: Tensor, num_nodes: int) -> None:
    rows, num_blocks = marks.shape[1], -(-num_nodes // marks.shape[1])
    assert rows in (FEW, MANY)
    assert nodes.shape == (num_blocks * rows,)
    assert sorted(nodes.tolist()) == sorted([-1] * (num_blocks * rows - num_nodes) + list(range(num_nodes)))
    assert pointers.shape == (num_blocks + 1,)
    assert pointers[0] == 0
    assert pointers[-1] == len(slots) == len(marks)
    assert slots.shape[1:] == (SLOTS,)
    assert marks.shape[2:] == (SLOTS,)
    for first, end in zip(pointers.tolist(), pointers[1:].tolist(), strict=False):
        used = slots[first:end] >= 0
        assert used.flatten().long().diff().le(0).all()  # no gap before the last slot of a block
        assert used.any(-1).all()  # no tile without work
        assert torch.equal((marks[first:end] >= 0).any(1), used)  # every slot that is used has an edge


def assert_right(edges: Edges, src_order: Order = None, dst_order: Order = None) -> EdgeTiles:
    tiled = edges.with_tiles(src_order, dst_order)
    assert tiled.tiles is not None
    tiles = tiled.tiles
    assert_well_formed(tiles.dst_nodes, tiles.dst_ptr, tiles.dst_slots, tiles.dst_edges, edges.num_dst)
    assert_well_formed(tiles.src_nodes, tiles.src_ptr, tiles.src_slots, tiles.src_edges, edges.num_src)
    orders = (tiles.dst_nodes, dst_order, edges.num_dst), (tiles.src_nodes, src_order, edges.num_src)
    for nodes, order, number in orders:  # blocks follow the order
        assert nodes[:number].tolist() == (list(range(number)) if order is None else order.tolist())
    assert_holds(tiles, edges)
    return tiles


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Edges, Order, Order]:
    """Draw edges, several of a pair too, and an order of either side or none."""
    num_src, num_dst = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    pairs = draw(st.lists(pair, max_size=40)) * draw(st.sampled_from([1, 3]))
    pairs += [(i % num_src, 7 * i % num_dst) for i in range(draw(st.sampled_from([0, 300])))]
    src_seed, dst_seed = draw(st.none() | st.integers(0, 9)), draw(st.none() | st.integers(0, 9))
    src_order = None if src_seed is None else shuffled(num_src, src_seed)
    dst_order = None if dst_seed is None else shuffled(num_dst, dst_seed)
    return sorted_edges(pairs, num_src, num_dst), src_order, dst_order


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_every_edge_is_found_once_in_both_views(graph: tuple[Edges, Order, Order]) -> None:
    assert_right(*graph)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 4))
def test_copies_are_the_tiles_of_graphs_side_by_side(graph: tuple[Edges, Order, Order], copies: int) -> None:
    edges, *orders = graph
    tiled = edges.with_tiles(*orders)
    side_by_side = tiled.repeated(copies)
    assert side_by_side.tiles is not None
    assert_holds(side_by_side.tiles, edges.repeated(copies))
    assert side_by_side.tiles.dst_blocks == copies * tiled.tiles.dst_blocks  # each copy pads its last
    assert side_by_side.tiles.src_blocks == copies * tiled.tiles.src_blocks
    dtypes = [[t.dtype for t in one.tiles.tensors()] for one in (tiled, side_by_side)]
    assert dtypes[0] == dtypes[1]


@pytest.mark.parametrize(
    ("pairs", "num_src", "num_dst"),
    [
        pytest.param([], 4, 3, id="no edges"),
        pytest.param([], 0, 0, id="no nodes"),
        pytest.param([], 0, 5, id="no sources"),
        pytest.param([], 5, 0, id="no destinations"),
        pytest.param([(0, 0)], 1, 1, id="one node"),
        pytest.param([(0, 0)] * 40, 1, 1, id="parallel edges of one node"),
        pytest.param([(0, 0)] * 17 + [(0, 1)] * 2, 2, 2, id="more twins than slots"),
        pytest.param([(40, 33)], 41, 34, id="isolated nodes"),
        pytest.param([(i, 3) for i in range(10_000)], 10_000, 20, id="10,000 edges into a node"),
        pytest.param([(3, i) for i in range(10_000)], 20, 10_000, id="10,000 edges from a node"),
        pytest.param([(i % 3, i // 3) for i in range(300)], 3, 100, id="few edges a node"),
    ],
)
def test_special_graphs(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> None:
    edges = sorted_edges(pairs, num_src, num_dst)
    assert_right(edges)
    tiles = assert_right(edges, shuffled(num_src, 1), shuffled(num_dst, 2))
    assert_holds(tiles.repeated(3, num_src, num_dst, edges.num_edges), edges.repeated(3))


@pytest.mark.parametrize(("most", "dtype"), [(2**15, torch.int16), (2**15 + 1, torch.int32)], ids=str)
def test_marks_are_as_narrow_as_the_edges_of_a_node_let_them(most: int, dtype: torch.dtype) -> None:
    index = torch.stack([torch.arange(most) % 500, torch.zeros(most, dtype=torch.long)])
    tiles = Edges.from_sorted(index, 500, 2).with_tiles().tiles
    assert tiles.dst_edges.dtype == dtype
    assert int(tiles.dst_edges.max()) == most - 1
    assert (tiles.dst_edges >= 0).sum() == most
    assert {t.dtype for t in tiles.tensors()} <= {dtype, torch.int32}


def test_blocks_are_larger_where_nodes_have_few_edges() -> None:
    into_many = sorted_edges([(i % 10, i % 100) for i in range(400)], 10, 100).with_tiles().tiles
    assert (into_many.dst_rows, into_many.src_rows) == (MANY, FEW)
    mesh = sorted_edges([(i % 100, i // 6) for i in range(600)], 100, 100).with_tiles().tiles
    assert (mesh.dst_rows, mesh.src_rows) == (FEW, FEW)


def test_edges_of_a_block_read_a_node_once() -> None:
    """16 destinations with the same 16 sources: one tile, without a gap."""
    tiles = sorted_edges([(i, j) for i in range(16) for j in range(16)], 16, 16).with_tiles().tiles
    assert tiles.dst_edges.shape == tiles.src_edges.shape == (1, 16, 16)
    assert int(tiles.dst_edges.min()) == int(tiles.src_edges.min()) == 0


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("side", ["src_order", "dst_order"])
def test_an_order_that_is_not_one_of_all_nodes_is_refused(side: str, order: list[int]) -> None:
    edges = sorted_edges([(0, 0), (2, 1)], 3, 3)
    with pytest.raises(ValueError, match="an order of 3 nodes has to list each of 0 to 2 once"):
        edges.with_tiles(**{side: torch.tensor(order)})


def test_to_a_device() -> None:
    edges = sorted_edges([(0, 0), (2, 1)], 3, 3).with_tiles()
    moved = edges.to("meta")
    assert all(t.is_meta for t in moved.tiles.tensors())
    assert [t.shape for t in moved.tiles.tensors()] == [t.shape for t in edges.tiles.tensors()]
    assert (moved.num_src, moved.num_dst) == (3, 3)
    assert sorted_edges([(0, 0)], 1, 1).to("meta").tiles is None


def test_edges_without_tiles_stay_so() -> None:
    edges = sorted_edges([(0, 0), (2, 1)], 3, 3)
    assert (edges.tiles, edges.repeated(2).tiles) == (None, None)
    tiled = edges.with_tiles()
    assert tiled.repeated(1) is tiled


def test_the_spatial_order_lists_every_node_once() -> None:
    latlons = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([math.pi, 2 * math.pi])
    order = spatial_order(latlons - torch.tensor([math.pi / 2, 0.0]))
    assert sorted(order.tolist()) == list(range(500))
    assert spatial_order(torch.zeros(0, 2)).shape == (0,)
    assert spatial_order(torch.zeros(4, 2)).tolist() == [0, 1, 2, 3]  # nodes at one place stay as they are


def test_the_spatial_order_takes_fewer_tiles_than_that_of_the_refinements() -> None:
    """Neighbours of a mesh have numbers far apart: a block of them leads to many nodes."""
    sphere = build_icosphere(4)
    x, y, z = torch.from_numpy(sphere.xyz).unbind(-1)
    order = spatial_order(torch.stack([z.asin(), torch.atan2(y, x)], dim=-1))
    number = len(order)
    assert sorted(order.tolist()) == list(range(number))
    steps = torch.from_numpy(sphere.xyz)[order].diff(dim=0).norm(dim=-1)
    as_numbered = torch.from_numpy(sphere.xyz).diff(dim=0).norm(dim=-1)
    assert steps.mean() < as_numbered.mean() / 2

    edges = Edges.from_sorted(torch.from_numpy(sphere.multi_scale_edges([4], 1)), number, number)
    near, far = edges.with_tiles(order, order).tiles, edges.with_tiles().tiles
    assert len(near.dst_slots) < 0.7 * len(far.dst_slots)
    assert len(near.src_slots) < 0.7 * len(far.src_slots)
    assert_holds(near, edges)
