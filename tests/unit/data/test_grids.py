import sys

import numpy as np
import pytest

from etesian.data.grids import REDUCED, gaussian_latitudes, named_grid
from etesian.errors import UserError


@pytest.mark.parametrize(
    ("name", "resolution", "points", "rows"),
    [
        ("o96", "o96", 40_320, 192),
        ("O32", "o32", 5_248, 64),
        ("o48", "o48", 10_944, 96),
        ("n320", "n320", 542_080, 640),
        ("n32", "n32", 6_114, 64),
        ("regular-5deg", "5x5", 36 * 72, 36),
        ("regular-2.5", "2.5x2.5", 72 * 144, 72),
    ],
)
def test_named_grids_have_their_points(name, resolution, points, rows):
    grid = named_grid(name)
    assert (grid.name, grid.latitudes.size, grid.longitudes.size) == (resolution, points, points)
    assert len(grid.row_latitudes) == rows
    assert (np.diff(grid.row_latitudes) < 0.0).all()
    assert grid.longitudes.min() == 0.0
    assert grid.longitudes.max() < 360.0


def test_the_largest_octahedral_grid_in_use_has_its_points():
    assert named_grid("o1280").latitudes.size == 6_599_680


def test_gaussian_latitudes_are_the_roots_of_the_legendre_polynomial():
    latitudes = gaussian_latitudes(320)
    polynomial = np.polynomial.legendre.Legendre.basis(640)
    slope = polynomial.deriv()(np.sin(np.radians(latitudes)))
    assert np.abs(polynomial(np.sin(np.radians(latitudes))) / slope).max() < 1e-12
    assert round(latitudes[0], 4) == 89.7849


def test_every_reduced_grid_that_is_named_is_there():
    for number in REDUCED:
        assert len(named_grid(f"n{number}").row_latitudes) == 2 * number


@pytest.mark.parametrize(
    ("name", "hint"),
    [("o9x", "o96"), ("n321", "n320"), ("regular", "regular-5deg"), ("o0", None), ("o5000", None), ("", None)],
)
def test_an_unknown_grid_is_an_error_with_what_is_allowed(name, hint):
    with pytest.raises(UserError, match="there is no grid") as error:
        named_grid(name)
    (problem,) = error.value.problems
    assert "o96" in str(problem.allowed)
    assert "n320" in str(problem.allowed)
    assert hint is None or hint in str(problem.mend)


def test_a_spacing_that_does_not_divide_180_is_an_error():
    with pytest.raises(UserError, match="7 degrees does not divide 180"):
        named_grid("regular-7deg")


def test_without_eccodes_the_reduced_grids_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "eccodes", None)
    with pytest.raises(UserError, match="n320 come from ecCodes") as error:
        named_grid("n320")
    assert "pip install eccodes" in str(error.value.problems[0].mend)
    assert named_grid("o32").name == "o32"
