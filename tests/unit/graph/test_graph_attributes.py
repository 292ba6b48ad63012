import numpy as np
import pytest
from graph_cases import scattered

from etesian.errors import UserError
from etesian.graph.attributes import edge_directions, edge_lengths, normalise
from etesian.graph.nodes import to_xyz


def radians(grid):
    return np.deg2rad(np.stack(grid, axis=1))


def pairs(source, target):
    """Attributes' arguments of edges between the i-th source and the i-th target, degrees."""
    source, target = np.deg2rad(np.atleast_2d(source)), np.deg2rad(np.atleast_2d(target))
    number = np.arange(len(source))
    return to_xyz(source), to_xyz(target), target, np.stack([number, number])


def directions(source, target):
    src, dst, latlon, index = pairs(source, target)
    return edge_directions(src, dst, latlon, index)


def test_length_equals_the_haversine_formula():
    source, target = radians(scattered(500, 1)), radians(scattered(500, 2))
    index = np.stack([np.arange(500)] * 2)
    step = target - source
    a = np.sin(step[:, 0] / 2) ** 2 + np.cos(source[:, 0]) * np.cos(target[:, 0]) * np.sin(step[:, 1] / 2) ** 2
    expected = 2 * np.arctan2(np.sqrt(a), np.sqrt(1 - a))
    np.testing.assert_allclose(edge_lengths(to_xyz(source), to_xyz(target), index)[:, 0], expected, rtol=1e-10)


def test_length_of_known_arcs():
    src, dst, _, index = pairs([(0, 0), (90, 0), (90, 10)], [(0, 1), (-90, 77), (90, 200)])
    np.testing.assert_allclose(edge_lengths(src, dst, index)[:, 0], [np.deg2rad(1), np.pi, 0], atol=1e-15)


def rotated_by_rodrigues(source, target):
    """Turn the target to the north pole about target x pole, and project the source: the definition itself."""
    pole = np.array([0.0, 0.0, 1.0])
    out = []
    for s, t in zip(source, target, strict=True):
        axis = np.cross(t, pole)
        angle = np.arctan2(np.linalg.norm(axis), t @ pole)
        axis /= np.linalg.norm(axis)
        turned = s * np.cos(angle) + np.cross(axis, s) * np.sin(angle) + axis * (axis @ s) * (1 - np.cos(angle))
        out.append(turned[:2] / np.linalg.norm(turned[:2]))
    return np.array(out)


def test_direction_equals_rodrigues_rotation():
    source, target = radians(scattered(300, 1)), radians(scattered(300, 2))
    index = np.stack([np.arange(300)] * 2)
    found = edge_directions(to_xyz(source), to_xyz(target), target, index)
    np.testing.assert_allclose(found, rotated_by_rodrigues(to_xyz(source), to_xyz(target)), atol=1e-10)


def test_direction_at_the_poles_does_not_depend_on_the_longitude_given_for_the_pole():
    source = [(70.0, 30.0)] * 3
    angle = np.deg2rad(30.0)
    north = directions(source, [(90, 0), (90, 123), (90, 359)])
    np.testing.assert_allclose(north, [[np.cos(angle), np.sin(angle)]] * 3, atol=1e-12)
    south = directions([(-70.0, 30.0)] * 3, [(-90, 0), (-90, 123), (-90, 359)])
    np.testing.assert_allclose(south, [[np.cos(angle), -np.sin(angle)]] * 3, atol=1e-12)


def test_direction_of_a_source_on_its_target_is_zero():
    np.testing.assert_array_equal(directions([(90, 10), (45, 45)], [(90, 300), (45, 45)]), np.zeros((2, 2)))


def test_turning_everything_about_the_poles_turns_the_directions_and_keeps_the_lengths():
    source, target = np.stack(scattered(50, 1), axis=1), np.stack(scattered(50, 2), axis=1)
    shift, angle = np.array([0.0, 40.0]), np.deg2rad(40.0)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    expected = directions(source, target) @ turn.T
    np.testing.assert_allclose(directions(source + shift, target + shift), expected, atol=1e-10)
    before, after = pairs(source, target), pairs(source + shift, target + shift)
    np.testing.assert_allclose(edge_lengths(*after[:2], after[3]), edge_lengths(*before[:2], before[3]), rtol=1e-10)


VALUES = np.array([[1.0, -3.0], [2.0, 0.5]])


def test_norms():
    np.testing.assert_array_equal(normalise(VALUES, "none", "edge_dirs", "data2hidden"), VALUES)
    np.testing.assert_allclose(normalise(VALUES, "unit-max", "edge_dirs", "data2hidden"), VALUES / 2.0)
    spread = np.sqrt(((VALUES - VALUES.mean()) ** 2).sum() / 3)
    np.testing.assert_allclose(normalise(VALUES, "unit-std", "edge_dirs", "data2hidden"), VALUES / spread)


@pytest.mark.parametrize(
    ("values", "norm"), [(np.full((9, 1), 0.3), "unit-std"), (np.ones((1, 1)), "unit-std"), (-VALUES * 0, "unit-max")]
)
def test_a_norm_that_would_divide_by_zero_is_an_error(values, norm):
    with pytest.raises(UserError) as caught:
        normalise(values, norm, "edge_length", "hidden2hidden")
    (problem,) = caught.value.problems
    assert problem.where == "graph.edge_attributes.edge_length"
    assert "hidden2hidden" in problem.what
    assert problem.mend == "graph.edge_attributes.edge_length=none"
