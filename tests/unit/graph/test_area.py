import numpy as np
import pytest
from graph_cases import GRIDS, regular, scattered
from scipy.spatial import SphericalVoronoi

from etesian.errors import UserError
from etesian.graph.area import area_weights, cell_areas
from etesian.graph.nodes import to_xyz


def xyz_of(grid):
    return to_xyz(np.deg2rad(np.stack(grid, axis=1)))


def region(lat, lon, shape):
    lat, lon = np.meshgrid(np.linspace(*lat, shape[0]), np.linspace(*lon, shape[1]), indexing="ij")
    return lat.ravel(), lon.ravel()


@pytest.mark.parametrize("name", GRIDS)
def test_areas_add_up_to_the_sphere(name):
    areas = cell_areas(xyz_of(GRIDS[name]))
    assert areas.sum() == pytest.approx(4 * np.pi, rel=1e-12)
    assert areas.min() > 0


@pytest.mark.parametrize("name", ["regular without poles", "reduced", "scattered"])
def test_areas_equal_those_of_an_independent_voronoi(name):
    points = xyz_of(GRIDS[name])
    expected = SphericalVoronoi(points, threshold=1e-6).calculate_areas()
    np.testing.assert_allclose(cell_areas(points), expected, rtol=1e-9)


def test_corners_of_an_icosahedron_have_equal_areas():
    from etesian.graph.icosphere import build_icosphere

    np.testing.assert_allclose(cell_areas(build_icosphere(0).xyz), np.pi / 3, rtol=1e-12)


def test_repeated_points_share_their_cell():
    latitudes, longitudes = regular(10, poles=True)
    areas = cell_areas(xyz_of((latitudes, longitudes)))
    once = np.r_[0, 36 : len(latitudes) - 36, len(latitudes) - 1]
    single = cell_areas(xyz_of((latitudes[once], longitudes[once])))
    np.testing.assert_allclose(areas[once[1:-1]], single[1:-1], rtol=1e-12)
    for pole, alone in ((slice(0, 36), single[0]), (slice(-36, None), single[-1])):
        np.testing.assert_allclose(areas[pole], alone / 36, rtol=1e-12)


def test_repeated_points_anywhere_share_their_cell():
    latitudes, longitudes = scattered(100)
    twice = np.r_[0:100, 7, 7]
    areas, single = cell_areas(xyz_of((latitudes[twice], longitudes[twice]))), cell_areas(xyz_of(scattered(100)))
    np.testing.assert_allclose(areas[[7, 100, 101]], single[7] / 3, rtol=1e-12)
    np.testing.assert_allclose(areas[8:100], single[8:], rtol=1e-12)


def test_areas_follow_a_renumbering_and_a_rotation():
    points = xyz_of(scattered())
    areas, order = cell_areas(points), np.random.default_rng(3).permutation(len(points))
    np.testing.assert_allclose(cell_areas(points[order]), areas[order], rtol=1e-9)
    rotation, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))
    np.testing.assert_allclose(cell_areas(points @ rotation), areas, rtol=1e-9)


@pytest.mark.parametrize(
    ("lat", "lon", "shape"),
    [((35, 70), (-20, 40), (36, 61)), ((-5, 5), (0, 10), (5, 5)), ((-30, 30), (0, 355), (13, 72))],
    ids=["Europe", "small", "tropical band"],
)
def test_cells_at_the_rim_of_a_region_do_not_reach_across_the_rest_of_the_sphere(lat, lon, shape):
    grid = region(lat, lon, shape)
    expected = np.cos(np.deg2rad(grid[0]))
    expected *= np.deg2rad((lat[1] - lat[0]) / (shape[0] - 1)) * np.deg2rad((lon[1] - lon[0]) / (shape[1] - 1))
    np.testing.assert_allclose(cell_areas(xyz_of(grid)), expected, rtol=0.06)


def test_the_cap_beyond_the_last_row_belongs_to_that_row_where_it_is_no_gap():
    areas = cell_areas(xyz_of(regular(10, poles=False)))
    cap = 2 * np.pi * (1 - np.cos(np.deg2rad(10.0)))
    assert areas[:36].sum() == pytest.approx(cap, rel=2e-2)  # rows part along great circles, not along 80 N


def test_weights_have_largest_one_and_keep_the_ratios():
    points = xyz_of(GRIDS["reduced"])
    weights, areas = area_weights(points), cell_areas(points)
    assert weights.shape == (len(points), 1)
    assert weights.max() == 1.0
    np.testing.assert_allclose(weights[:, 0] / weights.sum(), areas / areas.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    "grid",
    [
        (np.array([10.0, 20.0, 30.0]), np.array([0.0, 50.0, 100.0])),
        (np.full(36, 45.0), np.arange(36) * 10.0),
        (np.full(9, 45.0), np.full(9, 10.0)),
    ],
    ids=["three points", "one row", "one place"],
)
def test_points_that_enclose_no_volume_are_an_error(grid):
    with pytest.raises(UserError, match="have no area weights") as caught:
        cell_areas(xyz_of(grid))
    assert caught.value.problems[0].where == "system.input.dataset"


def test_a_region_that_is_all_rim_is_an_error():
    with pytest.raises(UserError, match="none of the data nodes has a cell of its own"):
        cell_areas(xyz_of(region((40, 45), (0, 20), (2, 9))))
