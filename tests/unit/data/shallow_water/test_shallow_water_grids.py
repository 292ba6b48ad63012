import numpy as np
import pytest

from etesian.data.shallow_water.grids import Evaluator, make_grid
from etesian.data.shallow_water.harmonics import EARTH_RADIUS, SphericalTransform
from etesian.data.shallow_water.initial import mountains, solid_rotation
from etesian.errors import UserError

SPEED = 2.0 * np.pi * EARTH_RADIUS / (12.0 * 86400.0)


@pytest.fixture(scope="module")
def transform():
    return SphericalTransform(21)


@pytest.mark.parametrize(
    ("kind", "degrees", "name", "points", "shape"),
    [
        ("gaussian", None, "n16", 2048, [32, 64]),
        ("regular", None, "5x5", 36 * 72, [36, 72]),
        ("regular", 2.5, "2.5x2.5", 72 * 144, [72, 144]),
        ("regular-poles", 10.0, "10x10", 19 * 36, [19, 36]),
        ("octahedral", None, "o16", 2 * sum(range(20, 84, 4)), [1600]),
    ],
)
def test_grids_have_their_sizes_and_run_from_north_to_south(transform, kind, degrees, name, points, shape):
    grid = make_grid(kind, transform, degrees)
    assert (grid.name, grid.latitudes.size, grid.longitudes.size) == (name, points, points)
    assert grid.field_shape == shape
    assert (np.diff(grid.row_latitudes) < 0.0).all()
    np.testing.assert_allclose(grid.row_latitudes, -grid.row_latitudes[::-1], atol=1e-12)
    assert grid.longitudes.min() == 0.0
    assert grid.longitudes.max() < 360.0


def test_a_regular_grid_holds_the_poles_only_when_asked(transform):
    assert make_grid("regular", transform, 5.0).latitudes.max() == 87.5
    assert make_grid("regular-poles", transform, 5.0).latitudes.max() == 90.0


def test_on_the_gaussian_grid_the_evaluation_is_the_synthesis(transform):
    spectral = mountains(transform, np.random.default_rng(1))
    field = Evaluator(make_grid("gaussian", transform, None), 21).scalar(spectral)
    own = transform.synthesis(spectral[..., None])[:, ::-1, 0].T  # J I, north to south
    np.testing.assert_allclose(field.reshape(32, 64), own, atol=1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "regular", "regular-poles", "octahedral"])
def test_tilted_solid_rotation_is_evaluated_exactly_at_every_point(transform, kind):
    angle = 0.7
    model, state = solid_rotation(transform, angle)
    grid = make_grid(kind, transform, 30.0 if kind.startswith("regular") else None)
    latitude, longitude = np.radians(grid.latitudes), np.radians(grid.longitudes)
    east, north, height, vorticity = Evaluator(grid, 21).fields(model, state)
    # Williamson et al. 1992, eqs. 90, 91 and 94
    along = -np.cos(longitude) * np.cos(latitude) * np.sin(angle) + np.sin(latitude) * np.cos(angle)
    np.testing.assert_allclose(
        east, SPEED * (np.cos(latitude) * np.cos(angle) + np.cos(longitude) * np.sin(latitude) * np.sin(angle)),
        atol=1e-10,
    )  # fmt: skip
    np.testing.assert_allclose(north, -SPEED * np.sin(longitude) * np.sin(angle), atol=1e-10)
    np.testing.assert_allclose(vorticity, 2.0 * SPEED / EARTH_RADIUS * along, atol=1e-16)
    depth = (2.94e4 - (EARTH_RADIUS * 7.292e-5 * SPEED + 0.5 * SPEED**2) * along**2) / 9.80616
    np.testing.assert_allclose(height, depth, atol=1e-8)


def test_a_grid_coarser_than_the_truncation_keeps_the_small_scales(transform):
    spectral = np.zeros((22, 22), complex)
    spectral[20, 21] = 1.0
    coarse = make_grid("regular", transform, 30.0)  # 12 longitudes, 20 waves
    functions = Evaluator(make_grid("regular", transform, 5.0), 21).scalar(spectral).reshape(36, 72)
    field = Evaluator(coarse, 21).scalar(spectral).reshape(6, 12)
    # rows at 75, 45, 15 ... and longitudes every 30 degrees lie between and on those of 5 degrees
    angle = 20.0 * np.radians(coarse.longitudes.reshape(6, 12))
    np.testing.assert_allclose(field, field[:, :1] * np.cos(angle), atol=1e-12)
    assert np.abs(functions).max() > 1.0


@pytest.mark.parametrize(
    ("kind", "degrees", "message"),
    [
        ("hexagons", None, "unknown grid"),
        ("gaussian", 5.0, "no meaning"),
        ("octahedral", 5.0, "no meaning"),
        ("regular", 7.0, "does not divide 180"),
        ("regular", 0.0, "does not divide 180"),
        ("regular", -5.0, "does not divide 180"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(transform, kind, degrees, message):
    with pytest.raises(UserError, match=message):
        make_grid(kind, transform, degrees)
