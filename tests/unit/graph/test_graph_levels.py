"""Levels of hidden nodes: the nodes and edges of each, what does not fit, graphs made elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from etesian.errors import UserError
from etesian.graph.build import build_graph, fingerprint
from etesian.graph.existing import adapt
from etesian.graph.levels import edge_label, edges_between, edges_within, level_names, levels_of
from etesian.schema.graph import ExistingGraphSettings, GraphSettings

LATITUDES, LONGITUDES = np.random.default_rng(0).uniform(-80, 80, (2, 60))


def settings(resolution: int = 3, **changes: object) -> GraphSettings:
    edges = {"data2hidden": {"cutoff_factor": 1.0}} | changes.pop("edges", {})
    return GraphSettings.model_validate({"nodes": {"hidden": {"resolution": resolution, **changes}}, "edges": edges})


def test_nodes_and_edges_of_each_level() -> None:
    graph = build_graph(LATITUDES, LONGITUDES, settings(levels=3))
    names = ["hidden", "hidden_2", "hidden_3"]
    assert levels_of(graph) == level_names(3) == names
    assert [graph[name].num_nodes for name in names] == [642, 162, 42]
    wanted = {("data", "to", "hidden"), ("hidden", "to", "data"), ("hidden", "to", "hidden")}
    assert set(graph.edge_types) == wanted | {*edges_within(names), *edges_between(names)}
    for fine, coarse in (("hidden", "hidden_2"), ("hidden_2", "hidden_3")):
        up, down = graph[coarse, "to", fine], graph[fine, "to", coarse]
        assert torch.bincount(up.edge_index[1]).tolist() == [3] * graph[fine].num_nodes
        assert (torch.bincount(down.edge_index[0], minlength=graph[fine].num_nodes) > 0).all()
        assert (torch.bincount(down.edge_index[1], minlength=graph[coarse].num_nodes) > 0).all()
        for store in (up, down):
            assert (store.edge_index[1].diff() >= 0).all()
            assert store.edge_length.isfinite().all()
            assert store.edge_dirs.isfinite().all()


def test_a_coarser_level_is_a_graph_of_its_resolution() -> None:
    graph, coarse = (build_graph(LATITUDES, LONGITUDES, settings(*args)) for args in ((3,), (1,)))
    levelled = build_graph(LATITUDES, LONGITUDES, settings(levels=2, coarsening=2))
    for one, other, name in ((levelled, graph, "hidden"), (levelled, coarse, "hidden_2")):
        assert torch.equal(one[name].x, other["hidden"].x)
        assert torch.equal(one[name, "to", name].edge_index, other["hidden", "to", "hidden"].edge_index)


def test_labels() -> None:
    assert edge_label("data", "hidden") == "data2hidden"
    assert edge_label("hidden_2", "hidden") == "hidden_2-hidden"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"levels": 5}, "levels=5 with coarsening=1 go below 0 refinements from resolution=3"),
        ({"levels": 2, "coarsening": 4}, "levels=2 with coarsening=4 go below 0"),
        ({"coarsening": 2}, "coarsening=2 does nothing with levels=1"),
        ({"edges": {"fine2coarse": {"cutoff_factor": 1.0}}}, "graph.edges.fine2coarse does nothing with graph.nodes"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**changes)


@pytest.mark.parametrize(
    ("edges", "where", "said"),
    [
        ({"fine2coarse": {"cutoff_factor": 0.2}}, "graph.edges.fine2coarse.cutoff_factor",
         "hidden nodes have no node of the next level within"),
        ({"coarse2fine": {"num_nearest_neighbours": 163}}, "graph.edges.coarse2fine.num_nearest_neighbours",
         "163 nearest neighbours of 162"),
        ({"hidden2hidden": {"scale_resolutions": [3]}}, "graph.edges.hidden2hidden.scale_resolutions",
         "refined 2 times"),
    ],
)  # fmt: skip
def test_edges_that_cannot_be_made(edges: dict[str, object], where: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        build_graph(LATITUDES, LONGITUDES, settings(levels=2, edges=edges))
    assert caught.value.problems[0].where == where


def test_graphs_of_one_level_keep_their_fingerprint() -> None:
    """What caches and checkpoints hold is not made anew."""
    assert fingerprint(np.arange(3.0), np.arange(3.0), settings(2)) == "56a8f7c03be8e35a94686e79e23f9707"
    assert fingerprint(np.arange(3.0), np.arange(3.0), settings(2, levels=2)) != "56a8f7c03be8e35a94686e79e23f9707"


def test_a_graph_made_elsewhere() -> None:
    graph = build_graph(LATITUDES, LONGITUDES, settings(levels=2))
    adapted = adapt(graph, ExistingGraphSettings(coarser_nodes=["hidden_2"]), "graph.pt")
    assert set(adapted.edge_types) == set(graph.edge_types)
    for kind in graph.edge_types:
        assert torch.equal(adapted[kind].edge_index, graph[kind].edge_index)
    assert set(adapt(graph, ExistingGraphSettings(), "graph.pt").node_types) == {"data", "hidden"}
    for wrong, said in ((["hidden"], "hidden: a node set is one level only"), (["hidden_3"], "no node set 'hidden_3'")):
        with pytest.raises(UserError, match=said) as caught:
            adapt(graph, ExistingGraphSettings(coarser_nodes=wrong), "graph.pt")
        assert caught.value.problems[0].where == "graph.existing.coarser_nodes"
    del graph["hidden_2", "to", "hidden"]
    with pytest.raises(UserError, match="no edges hidden_2 to hidden"):
        adapt(graph, ExistingGraphSettings(coarser_nodes=["hidden_2"]), "graph.pt")
