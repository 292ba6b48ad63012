import numpy as np
import pytest
from graph_cases import GRIDS, regular, scattered
from scipy.spatial import cKDTree

from etesian.errors import UserError
from etesian.graph.edge_builders import TOLERANCE, cutoff_edges, nearest_edges, reference_distance
from etesian.graph.icosphere import build_icosphere
from etesian.graph.nodes import to_xyz


def xyz_of(grid):
    return to_xyz(np.deg2rad(np.stack(grid, axis=1)))


def tree(resolution=2):
    return cKDTree(build_icosphere(resolution).xyz)


def all_distances(points, nodes):
    return np.linalg.norm(points[:, None] - nodes[None], axis=2)


def is_sorted(edge_index):
    key = edge_index[1] * 10**6 + edge_index[0]
    return bool((np.diff(key) > 0).all())


def test_reference_distance_is_the_largest_of_the_nearest():
    nodes = tree()
    distances = all_distances(nodes.data, nodes.data)
    np.fill_diagonal(distances, np.inf)
    assert reference_distance(nodes) == pytest.approx(distances.min(axis=1).max(), rel=1e-12)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("factor", [0.9, 2.5])
def test_cutoff_edges_equal_all_pairs_within_the_radius(name, factor):
    points, nodes = xyz_of(GRIDS[name]), tree()
    edge_index = cutoff_edges(points, nodes, factor, workers=1)
    inside = all_distances(points, nodes.data) < factor * reference_distance(nodes) + TOLERANCE
    hidden, data = np.nonzero(inside.T)
    np.testing.assert_array_equal(edge_index, [data, hidden])
    assert is_sorted(edge_index)
    assert len(np.unique(edge_index[0])) == len(points)


def test_cutoff_radius_beyond_the_whole_sphere_connects_everything():
    points, nodes = xyz_of(scattered(30)), tree(0)
    assert cutoff_edges(points, nodes, 3.0, workers=1).shape == (2, 30 * 12)


def test_unconnected_data_nodes_are_counted_and_the_factor_named_is_just_enough():
    points, nodes = xyz_of(regular(10, poles=True)), tree()
    with pytest.raises(UserError) as caught:
        cutoff_edges(points, nodes, 0.4, workers=1)
    (problem,) = caught.value.problems
    nearest = all_distances(points, nodes.data).min(axis=1) / reference_distance(nodes)
    assert f"{(nearest > 0.4).sum()} of {len(points)} data nodes" in problem.what
    assert problem.where == "graph.edges.data2hidden.cutoff_factor"
    enough = float(problem.mend.partition("=")[2])
    assert cutoff_edges(points, nodes, enough, workers=1).shape[1] >= len(points)
    with pytest.raises(UserError):
        cutoff_edges(points, nodes, enough - 0.0011, workers=1)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_nearest_edges_equal_a_sort_of_all_distances(name, k):
    points, nodes = xyz_of(GRIDS[name]), tree()
    edge_index = nearest_edges(points, nodes, k, workers=1)
    # Rounding to 1e-9 makes ties of equal distances; a stable sort then takes the lowest numbers.
    distances = np.round(all_distances(points, nodes.data), 9)
    expected = np.sort(np.argsort(distances, axis=1, kind="stable")[:, :k], axis=1)
    np.testing.assert_array_equal(edge_index[0].reshape(-1, k), expected)
    np.testing.assert_array_equal(edge_index[1], np.repeat(np.arange(len(points)), k))
    assert is_sorted(edge_index)


def test_all_points_of_one_pole_have_the_same_neighbours():
    points, nodes = xyz_of(regular(10, poles=True)), tree()
    nearest = nearest_edges(points, nodes, 3, workers=1)[0].reshape(-1, 3)
    for pole in (slice(0, 36), slice(-36, None)):
        assert len(np.unique(nearest[pole], axis=0)) == 1


def test_as_many_neighbours_as_hidden_nodes_take_them_all():
    edge_index = nearest_edges(xyz_of(scattered(5)), tree(0), 12, workers=1)
    np.testing.assert_array_equal(edge_index[0], np.tile(np.arange(12), 5))


def test_more_neighbours_than_hidden_nodes_is_an_error():
    with pytest.raises(UserError) as caught:
        nearest_edges(xyz_of(scattered(5)), tree(0), 13, workers=1)
    (problem,) = caught.value.problems
    assert problem.where == "graph.edges.hidden2data.num_nearest_neighbours"
    assert problem.allowed == "1 to 12"
