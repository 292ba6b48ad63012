"""Power spectra of fields whose spherical harmonics are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etesian.data.grids import Grid, named_grid, regular
from etesian.data.shallow_water.harmonics import legendre
from etesian.inference.evaluation import LeadTime
from etesian.inference.spectra import NoRows, RowTransform, Spectra

GRIDS = [named_grid("o16"), named_grid("regular-10deg"), regular(10.0, poles=True)]


def harmonic(n: int, m: int, grid: Grid) -> np.ndarray:
    """A real harmonic whose power is 1 at n and 0 elsewhere."""
    sine, cosine = np.sin(np.deg2rad(grid.latitudes)), np.cos(np.deg2rad(grid.latitudes))
    functions, _ = legendre(n, sine, cosine)
    return functions[m, :, n] * (1.0 if m == 0 else np.sqrt(2.0) * np.cos(m * np.deg2rad(grid.longitudes) - 0.3))


@pytest.mark.parametrize("grid", GRIDS, ids=["octahedral", "regular", "with poles"])
@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 1), (5, 0), (8, 3), (8, 8)])
def test_the_power_of_one_harmonic_is_at_its_wavenumber(grid: Grid, n: int, m: int) -> None:
    transform = RowTransform(grid.latitudes, grid.longitudes)
    power = transform.power(3.0 * harmonic(n, m, grid)[None])[0]
    expected = np.zeros(transform.truncation + 1)
    expected[n] = 9.0
    np.testing.assert_allclose(power, expected, atol=2e-5)  # an octahedral row at the pole has twenty points


def test_the_truncation_is_what_the_rows_resolve() -> None:
    truncations = [RowTransform(grid.latitudes, grid.longitudes).truncation for grid in GRIDS]
    assert truncations == [31, 8, 9]


def test_the_first_longitude_and_the_direction_of_the_rows_do_not_matter() -> None:
    grid = GRIDS[1]
    field = harmonic(7, 2, grid) + harmonic(3, 1, grid)
    here = RowTransform(grid.latitudes, grid.longitudes).power(field[None])
    columns = len(grid.row_longitudes[0])
    order = np.arange(field.size).reshape(-1, columns)[::-1, np.roll(np.arange(columns), 5)].ravel()
    there = RowTransform(grid.latitudes[order], grid.longitudes[order] - 360.0).power(field[order][None])
    np.testing.assert_allclose(there, here, atol=1e-12)


@pytest.mark.parametrize(
    ("latitudes", "longitudes", "message"),
    [
        (np.linspace(-80, 80, 200), np.linspace(0, 350, 200), "no rows of equal latitude"),
        (np.repeat(np.arange(30.0, 60.0, 2.0), 20), np.tile(np.arange(20.0), 15), "do not go evenly round"),
        (np.repeat(np.arange(30.0, 60.0, 2.0), 20), np.tile(np.arange(0, 360, 18.0), 15), "do not cover the globe"),
        (np.repeat(np.tile([10.0, -10.0], 8), 20), np.tile(np.arange(0, 360, 18.0), 16), "not in order of latitude"),
    ],
)
def test_grids_without_a_spectrum(latitudes: np.ndarray, longitudes: np.ndarray, message: str) -> None:
    with pytest.raises(NoRows, match=message):
        RowTransform(latitudes, longitudes)


def test_spectra_are_means_over_forecasts_and_leave_out_what_has_gaps() -> None:
    grid = GRIDS[1]
    fields = torch.as_tensor(np.stack([1.0 * harmonic(2, 1, grid), 3.0 * harmonic(2, 1, grid)]))
    truth = fields[:, None, :, None].repeat(1, 1, 1, 2)  # [B, E, G, V]
    truth[1, 0, 4, 0] = torch.nan
    spectra = Spectra(RowTransform(grid.latitudes, grid.longitudes), [1], [0, 1])
    dates = np.array(["2000-01-01", "2000-01-02"], dtype="datetime64[s]")
    spectra.add(LeadTime(0, truth, truth, truth, dates))  # not asked for
    spectra.add(LeadTime(1, 2.0 * truth, truth, truth, dates))
    np.testing.assert_allclose(spectra.mean[:, 0, :, 2], [[1.0, 5.0], [4.0, 20.0], [1.0, 5.0]], rtol=1e-5)
