import numpy as np
import pytest
import torch
from graph_cases import GRIDS, regular, scattered, settings

from etesian.errors import UserError
from etesian.graph.build import build_graph, check_settings, fingerprint
from etesian.graph.edges import Edges
from etesian.graph.icosphere import build_icosphere
from etesian.graph.nodes import to_latlon, to_xyz


@pytest.mark.parametrize("name", GRIDS)
def test_any_grid_gives_a_whole_graph(name):
    latitudes, longitudes = GRIDS[name]
    graph = build_graph(latitudes, longitudes, settings())
    assert set(graph.edge_types) == {("data", "to", "hidden"), ("hidden", "to", "hidden"), ("hidden", "to", "data")}
    np.testing.assert_allclose(
        graph["data"].x.numpy(), np.deg2rad(np.stack([latitudes, longitudes], axis=1)), rtol=1e-6
    )
    assert graph["data"].area_weight.shape == (len(latitudes), 1)
    for source, relation, target in graph.edge_types:
        store, sizes = graph[source, relation, target], [len(graph[kind].x) for kind in (source, target)]
        edges = Edges.from_sorted(store.edge_index, *sizes)  # raises where unsorted
        ties = edges.dst[1:] == edges.dst[:-1]
        assert bool((edges.src[1:] > edges.src[:-1])[ties].all())
        assert store.edge_length.shape == (edges.num_edges, 1)
        assert store.edge_dirs.shape == (edges.num_edges, 2)
        for values in (store.edge_length, store.edge_dirs):
            assert values.dtype == torch.float32
            assert float(values.double().std()) == pytest.approx(1.0, rel=1e-6)
    encoder, decoder = graph["data", "to", "hidden"].edge_index, graph["hidden", "to", "data"].edge_index
    assert bool((torch.bincount(encoder[0], minlength=len(latitudes)) > 0).all())
    assert bool((torch.bincount(decoder[1], minlength=len(latitudes)) == 3).all())


def test_hidden_nodes_are_the_icosphere_and_the_graph_is_valid():
    graph = build_graph(*scattered(), settings(resolution=1))
    np.testing.assert_allclose(to_xyz(graph["hidden"].x.double().numpy()), build_icosphere(1).xyz, atol=1e-7)
    assert graph.validate()


def test_renumbering_the_data_nodes_renumbers_the_edges():
    latitudes, longitudes = GRIDS["regular with poles"]
    order = np.random.default_rng(0).permutation(len(latitudes))
    graph, mixed = (build_graph(latitudes[o], longitudes[o], settings()) for o in (np.arange(len(order)), order))
    torch.testing.assert_close(mixed["data"].area_weight, graph["data"].area_weight[order])
    for edge_type, row in ((("data", "to", "hidden"), 0), (("hidden", "to", "data"), 1)):
        one, other = graph[edge_type], mixed[edge_type]
        index = other.edge_index.clone()
        index[row] = torch.from_numpy(order)[index[row]]
        back = np.lexsort((index[0], index[1]))
        torch.testing.assert_close(index[:, back], one.edge_index)
        torch.testing.assert_close(other.edge_length[back], one.edge_length)
        torch.testing.assert_close(other.edge_dirs[back], one.edge_dirs)


def test_a_longitude_convention_changes_no_edge():
    latitudes, longitudes = GRIDS["reduced"]
    graph = build_graph(latitudes, longitudes, settings())
    other = build_graph(latitudes, np.where(longitudes > 180, longitudes - 360, longitudes), settings())
    for edge_type in graph.edge_types:
        torch.testing.assert_close(other[edge_type].edge_index, graph[edge_type].edge_index, rtol=0, atol=0)
        torch.testing.assert_close(other[edge_type].edge_dirs, graph[edge_type].edge_dirs)


def test_norm_none_keeps_radians_and_unit_vectors():
    graph = build_graph(*scattered(), settings(norm="none"))
    store = graph["hidden", "to", "hidden"]
    assert float(store.edge_length.max()) == pytest.approx(np.arctan(2.0), rel=1e-6)  # an icosahedron's edge
    torch.testing.assert_close(store.edge_dirs.norm(dim=1), torch.ones(len(store.edge_dirs)))


def test_the_default_experiment_connects_every_data_node():
    from pathlib import Path

    import yaml

    from etesian.schema.graph import GraphSettings

    file = Path(__file__).parents[3] / "config" / "graph" / "multi_scale.yaml"
    default = GraphSettings.model_validate(yaml.safe_load(file.read_text()))
    for poles in (True, False):
        latitudes, longitudes = regular(5, poles)
        graph = build_graph(latitudes, longitudes, default)
        assert len(torch.unique(graph["data", "to", "hidden"].edge_index[0])) == len(latitudes)
        assert len(torch.unique(graph["data", "to", "hidden"].edge_index[1])) == 642


@pytest.mark.parametrize(("levels", "named"), [([0, 3], "[3]"), ([-1, 2, 7], "[-1, 7]"), ([], "no level")])
def test_levels_that_the_nodes_do_not_have_are_an_error(levels, named):
    with pytest.raises(UserError) as caught:
        check_settings(settings(resolution=2, levels=levels))
    (problem,) = caught.value.problems
    assert problem.where == "graph.edges.hidden2hidden.scale_resolutions"
    assert named in problem.what
    with pytest.raises(UserError):
        build_graph(*scattered(), settings(resolution=2, levels=levels))


def test_bad_coordinates_are_reported_together():
    latitudes, longitudes = scattered(10)
    latitudes[3], longitudes[[4, 5]] = np.nan, 400.0
    with pytest.raises(UserError) as caught:
        build_graph(latitudes, longitudes, settings())
    whats = [problem.what for problem in caught.value.problems]
    assert whats[0] == "1 of 10 grid points have no valid latitude (point 3: nan)"
    assert whats[1] == "2 of 10 grid points have no valid longitude (point 4: 400.0)"
    assert {problem.where for problem in caught.value.problems} == {"system.input.dataset"}


def test_no_grid_points_are_an_error_and_unequal_lengths_a_fault_of_the_caller():
    with pytest.raises(UserError, match="no grid points"):
        build_graph(np.zeros(0), np.zeros(0), settings())
    with pytest.raises(ValueError, match="must be"):
        build_graph(np.zeros(3), np.zeros(4), settings())


def test_the_fingerprint_changes_with_all_that_the_graph_is_made_from_and_with_nothing_else():
    latitudes, longitudes = scattered(20)
    base = fingerprint(latitudes, longitudes, settings())
    moved = longitudes.copy()
    moved[-1] += 1e-9
    others = [
        fingerprint(latitudes, moved, settings()),
        fingerprint(longitudes, latitudes, settings()),
        *(
            fingerprint(latitudes, longitudes, settings(**change))
            for change in (
                {"resolution": 1},
                {"cutoff": 1.1},
                {"k": 4},
                {"x_hops": 2},
                {"levels": [2]},
                {"norm": "none"},
            )
        ),
    ]
    assert len({base, *others}) == 1 + len(others)
    assert fingerprint(latitudes.copy(), longitudes[::1], settings(overwrite=True)) == base


def test_latitudes_and_longitudes_survive_the_way_to_xyz_and_back():
    latlon = np.deg2rad(np.stack([scattered()[0], scattered()[1] - 180], axis=1))
    np.testing.assert_allclose(to_latlon(to_xyz(latlon)), latlon, atol=1e-14)
