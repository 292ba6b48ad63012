import numpy as np
import pytest

from etesian.graph.icosphere import build_icosphere


@pytest.fixture(scope="module")
def sphere():
    return build_icosphere(3)


@pytest.mark.parametrize("level", range(4))
def test_each_level_has_the_counts_of_a_refined_icosahedron(level):
    sphere = build_icosphere(level)
    assert len(sphere.xyz) == 10 * 4**level + 2
    assert len(sphere.faces[level]) == 20 * 4**level
    assert len(sphere.edges(level)) == 30 * 4**level
    np.testing.assert_allclose(np.linalg.norm(sphere.xyz, axis=1), 1.0, atol=1e-15)


def test_coarse_nodes_come_first(sphere):
    for level in range(3):
        np.testing.assert_array_equal(build_icosphere(level).xyz, sphere.xyz[: 10 * 4**level + 2])


def test_twelve_nodes_have_five_neighbours_and_the_others_six(sphere):
    degrees = np.bincount(sphere.edges(3).ravel())
    assert (degrees[:12] == 5).all()
    assert (degrees[12:] == 6).all()


def test_new_nodes_are_ordered_by_the_nodes_they_lie_between(sphere):
    ends = sphere.edges(2)
    assert (np.diff(ends[:, 0] * 1000 + ends[:, 1]) > 0).all()
    middle = sphere.xyz[ends].sum(axis=1)
    np.testing.assert_allclose(sphere.xyz[162:], middle / np.linalg.norm(middle, axis=1, keepdims=True), atol=1e-15)


def test_orientation_is_that_of_the_golden_rectangles(sphere):
    long, short = np.array([(1 + 5**0.5) / 2, 1.0]) / np.hypot(1, (1 + 5**0.5) / 2)
    for corner in [(0, short, long), (short, -long, 0), (-long, 0, short)]:
        assert np.linalg.norm(sphere.xyz[:12] - corner, axis=1).min() < 1e-15


def brute_force_edges(sphere, levels, x_hops):
    """Breadth-first search from every node, level by level."""
    found = set()
    for level in levels:
        neighbours = {}
        for a, b in sphere.edges(level).tolist():
            neighbours.setdefault(a, set()).add(b)
            neighbours.setdefault(b, set()).add(a)
        for start in neighbours:
            reached = {start}
            for _ in range(x_hops):
                reached |= set().union(*(neighbours[node] for node in reached))
            found |= {(start, node) for node in reached - {start}}
    return sorted(found)


@pytest.mark.parametrize(("levels", "x_hops"), [([0, 1, 2, 3], 1), ([3], 1), ([1, 3], 2), ([0, 2], 3)])
def test_multi_scale_edges_equal_a_search_from_every_node(sphere, levels, x_hops):
    edge_index = sphere.multi_scale_edges(levels, x_hops)
    assert list(zip(edge_index[1].tolist(), edge_index[0].tolist(), strict=True)) == brute_force_edges(
        sphere, levels, x_hops
    )


def test_all_levels_at_one_hop_have_the_sum_of_their_edges(sphere):
    assert sphere.multi_scale_edges([0, 1, 2, 3], 1).shape == (2, 60 * (1 + 4 + 16 + 64))
