"""A graph in parts: nothing is lost, and what is sent is what is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_model import make_graph
from torch import Tensor

from etesian.errors import UserError
from etesian.graph.partition import NodeParts, Partition, balanced_bounds
from etesian.graph.tiles import EdgeTiles

EDGES = [("data", "hidden"), ("hidden", "hidden"), ("hidden", "data")]


def test_ranges_of_equal_work():
    assert balanced_bounds(torch.tensor([1, 1, 1, 1, 1, 1]), 3) == [0, 2, 4, 6]
    assert balanced_bounds(torch.tensor([1, 1, 1, 3, 3, 3]), 2) == [0, 4, 6]
    assert balanced_bounds(torch.tensor([100, 1, 1]), 3) == [0, 1, 2, 3]  # a node each, at least
    assert balanced_bounds(torch.tensor([1, 1, 100]), 3) == [0, 1, 2, 3]
    assert balanced_bounds(torch.tensor([2, 2]), 1) == [0, 2]


def test_every_node_is_in_one_part():
    order = torch.tensor([4, 0, 3, 1, 2])
    nodes = NodeParts.cut(order, [0, 2, 5])
    assert [part.tolist() for part in nodes.parts] == [[0, 4], [1, 2, 3]]
    assert nodes.owner.tolist() == [0, 1, 1, 1, 0]
    assert nodes.place.tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_data_nodes_are_cut_where_they_stand(count: int):
    partition = Partition.of_graph(make_graph(), count)
    ranges = [partition.points(part) for part in range(count)]
    assert [number for points in ranges for number in range(points.start, points.stop)] == list(range(14))
    assert torch.cat(partition.hidden.parts).sort().values.tolist() == list(range(5))
    assert partition.count == count


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("src", "dst"), EDGES)
def test_parts_have_all_edges_and_get_the_sources_of_theirs(src: str, dst: str, count: int):
    graph = make_graph(40, 17, seed=count)
    partition = Partition.of_graph(graph, count)
    parts = [partition.edges(graph, src, dst, part, tiled=False) for part in range(count)]
    index = graph[src, "to", dst].edge_index
    assert torch.cat([part.edge for part in parts]).sort().values.tolist() == list(range(index.shape[1]))
    for number, part in enumerate(parts):
        own = partition.of(dst).parts[number]
        ends = torch.stack([part.source[part.edges.src], own[part.edges.dst]])
        assert torch.equal(ends, index[:, part.edge])
        assert part.edges.num_dst == own.numel()
        assert torch.equal(gathered(parts, partition.of(src), number), part.source)


def gathered(parts: list, sources: NodeParts, receiver: int) -> Tensor:
    """What arrives at a process when each sends the numbers of the nodes on its list."""
    arrived = []
    for sender, part in enumerate(parts):
        assert part.sent[receiver] == parts[receiver].received[sender]
        sent = sources.parts[sender][part.send].split(part.sent)
        arrived.append(sent[receiver])
    return torch.cat(arrived)


def test_edges_of_a_part_in_tiles():
    graph = make_graph(40, 17)
    part = Partition.of_graph(graph, 3).edges(graph, "data", "hidden", 1, tiled=True)
    assert isinstance(part.edges.tiles, EdgeTiles)
    slots = part.edges.tiles.dst_slots
    assert slots[slots >= 0].unique().tolist() == list(range(part.source.numel()))


def test_hidden_nodes_go_with_the_data_nodes_near_them():
    """However they are numbered: here the data from north to south, the hidden nodes at random."""
    graph = make_graph(400, 100)
    north_first = graph["data"].x[:, 0].argsort(descending=True)
    graph["data"].x = graph["data"].x[north_first]
    north, south = Partition.of_graph(graph, 2).hidden.parts
    latitudes = np.rad2deg(graph["hidden"].x[:, 0].numpy())
    assert latitudes[north.numpy()].min() > latitudes[south.numpy()].max() - 20


@pytest.mark.parametrize(("sizes", "what"), [((14, 5), "5 hidden nodes"), ((4, 5), "4 data nodes and 5 hidden nodes")])
def test_more_parts_than_nodes(sizes: tuple[int, int], what: str):
    graph = make_graph(*sizes)
    with pytest.raises(UserError) as caught:
        Partition.of_graph(graph, 6)
    (problem,) = caught.value.problems
    assert problem.what == f"system.hardware.num_gpus_per_model=6, but the graph has {what}"
    assert problem.where == "system.hardware.num_gpus_per_model"
    assert problem.allowed == f"at most {min(sizes)}"
