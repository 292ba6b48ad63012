"""Graph files that were made elsewhere: put into the form of those built here, or refused with the reason."""

import re

import numpy as np
import pytest
import torch
from graph_cases import scattered, settings
from torch_geometric.data import HeteroData

from etesian.errors import UserError
from etesian.graph.build import build_graph
from etesian.graph.existing import adapt, check_data_nodes, check_edge_sets
from etesian.graph.store import load_or_build, save_graph
from etesian.schema.graph import ExistingGraphSettings, GraphSettings

GRID = scattered(60)
EXISTING = ExistingGraphSettings()
NAMES = {"data": "points", "hidden": "mesh"}


@pytest.fixture
def built() -> HeteroData:
    return build_graph(*GRID, settings(resolution=1))


def elsewhere(graph: HeteroData, seed: int = 0) -> HeteroData:
    """Return the graph under other names, its edges in any order, 32-bit numbers, and things that nothing reads."""
    other, generator = HeteroData(), torch.Generator().manual_seed(seed)
    for kind, name in NAMES.items():
        other[name].x = graph[kind].x.double()
        other[name].node_type = "LatLonNodes"
    other["points"].area_weight = graph["data"].area_weight.flatten()
    other["coarse"].x = torch.zeros(3, 2)
    for source, relation, target in graph.edge_types:
        store, made = graph[source, relation, target], other[NAMES[source], "to", NAMES[target]]
        order = torch.randperm(store.edge_index.shape[1], generator=generator)
        made.edge_index = store.edge_index[:, order].int()
        made.edge_length, made.edge_dirs = store.edge_length[order].double(), store.edge_dirs[order]
        made.edge_type = "KNNEdges"
    return other


def same(one: HeteroData, other: HeteroData, tolerance: float = 0.0) -> None:
    for kind in (*one.node_types, *one.edge_types):
        assert set(one[kind]) == set(other[kind])
        for name, value in one[kind].items():
            torch.testing.assert_close(other[kind][name], value, rtol=0, atol=tolerance)


def test_names_order_and_types_become_those_of_a_graph_built_here(built: HeteroData) -> None:
    adapted = adapt(elsewhere(built), ExistingGraphSettings(data_nodes="points", hidden_nodes="mesh"), "g.pt")
    same(built, adapted)
    again = adapt(elsewhere(built, seed=1), ExistingGraphSettings(data_nodes="points", hidden_nodes="mesh"), "g.pt")
    assert adapted.fingerprint == again.fingerprint != built.fingerprint


def test_what_positions_give_is_computed_and_said(built: HeteroData, caplog: pytest.LogCaptureFixture) -> None:
    bare = built.clone()
    del bare["data"].area_weight, bare["data", "to", "hidden"].edge_length, bare["hidden", "to", "data"].edge_dirs
    with caplog.at_level("INFO"):
        same(built, adapt(bare, EXISTING, "g.pt"), tolerance=2e-5)
    assert (
        "g.pt lacks edge_length of data2hidden, edge_dirs of hidden2data, area_weight of data: computed" in caplog.text
    )


def changed(graph: HeteroData, fault: str) -> HeteroData:
    data, index = graph["data"], graph["data", "to", "hidden"].edge_index
    if fault == "degrees":
        data.x = torch.rad2deg(data.x)
    elif fault == "shape":
        data.x = data.x[:, :1]
    elif fault == "nan":
        data.x[3, 0] = torch.nan
    elif fault == "index":
        index[0, 5] = 60
    elif fault == "float index":
        graph["data", "to", "hidden"].edge_index = index.float()
    elif fault == "no decoder":
        del graph["hidden", "to", "data"]
    elif fault == "lonely":
        store = graph["hidden", "to", "data"]
        kept = store.edge_index[1] > 1
        store.edge_index, store.edge_length = store.edge_index[:, kept], store.edge_length[kept]
        store.edge_dirs = store.edge_dirs[kept]
    elif fault == "dirs":
        graph["hidden", "to", "hidden"].edge_dirs = torch.zeros(4, 2)
    elif fault == "attribute nan":
        graph["hidden", "to", "hidden"].edge_length[0] = torch.inf
    elif fault == "area":
        data.area_weight = -data.area_weight
    return graph


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("degrees", r"beyond the sphere: latitudes to [\s\S]*torch.deg2rad"),
        ("shape", r"nodes 'data' have x of shape \(60, 1\)"),
        ("nan", "positions of the nodes 'data' are not finite"),
        ("index", r"edges data2hidden name source node 60, of 60 nodes\n.*g\.pt\n.*0 to 59"),
        ("float index", "edge_index of data2hidden is of torch.float32"),
        ("no decoder", "no edges hidden to data\n.*\n.*data to hidden, hidden to hidden"),
        ("lonely", "no edge leads to 2 of 60 data nodes"),
        ("dirs", r"edge_dirs of hidden2hidden has shape \(4, 2\)"),
        ("attribute nan", "edge_length of hidden2hidden is not finite"),
        ("area", "area_weight of data is negative"),
    ],
)
def test_what_cannot_be_right_is_refused(built: HeteroData, fault: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        adapt(changed(built, fault), EXISTING, "g.pt")
    assert re.search(message, str(error.value)), error.value


def test_a_node_set_that_is_not_there(built: HeteroData) -> None:
    with pytest.raises(UserError) as error:
        adapt(built, ExistingGraphSettings(hidden_nodes="hiden"), "g.pt")
    assert re.search(r"no node set 'hiden'\n.*hidden_nodes\n.*data, hidden\n.*did you mean 'hidden'", str(error.value))
    with pytest.raises(UserError, match="both 'data'"):
        adapt(built, ExistingGraphSettings(hidden_nodes="data"), "g.pt")


def test_data_nodes_are_the_grid_points_in_their_order(built: HeteroData) -> None:
    latitudes, longitudes = GRID
    check_data_nodes(built, latitudes, longitudes - 360, "g.pt")
    with pytest.raises(UserError, match="60 data nodes, the dataset 59 grid points"):
        check_data_nodes(built, latitudes[1:], longitudes[1:], "g.pt")
    with pytest.raises(UserError, match=r"60 of 60 data nodes are not at .*node 0 is at latitude"):
        check_data_nodes(built, np.roll(latitudes, 1), np.roll(longitudes, 1), "g.pt")
    moved = latitudes.copy()
    moved[7] += 0.002
    with pytest.raises(UserError, match=r"1 of 60 .*node 7 .*0\.2 km away[\s\S]*at most 0\.1 km"):
        check_data_nodes(built, moved, longitudes, "g.pt")


def test_edges_that_a_processor_goes_along(built: HeteroData) -> None:
    del built["hidden", "to", "hidden"]
    adapted = adapt(built, EXISTING, "g.pt")
    check_edge_sets(adapted, {("data", "to", "hidden")}, "g.pt")
    with pytest.raises(UserError, match="no edges hidden to hidden"):
        check_edge_sets(adapted, {("hidden", "to", "hidden")}, "g.pt")


def test_the_file_is_read_and_never_written(built: HeteroData, tmp_path) -> None:
    path, existing = tmp_path / "g.pt", GraphSettings(existing=EXISTING)
    save_graph(built, path)
    before = path.read_bytes()
    same(built, load_or_build(*GRID, existing, path, tmp_path / "cache"))
    with pytest.raises(UserError, match="are not at the dataset's grid point"):
        load_or_build(GRID[0], GRID[1] + 1, existing, path, tmp_path / "cache")
    assert path.read_bytes() == before
    assert not (tmp_path / "cache").exists()
    path.unlink()
    with pytest.raises(UserError, match="no such graph file"):
        load_or_build(*GRID, existing, path, tmp_path / "cache")
