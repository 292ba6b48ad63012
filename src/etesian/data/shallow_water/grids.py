"""Grids of the stores, and exact evaluation of spherical harmonics on them."""

from __future__ import annotations

import numpy as np

from etesian.data.grids import Grid, octahedral, regular
from etesian.data.shallow_water.harmonics import EARTH_RADIUS, Complex, Real, SphericalTransform, legendre
from etesian.data.shallow_water.options import GRIDS
from etesian.data.shallow_water.solver import GRAVITY, ShallowWater, State
from etesian.errors import UserError


def make_grid(kind: str, transform: SphericalTransform, degrees: float | None) -> Grid:
    """Make a grid of one of the :data:`GRIDS`.

    Parameters
    ----------
    kind : str
        ``gaussian``: the solver's own. ``regular``: cells of `degrees` by `degrees`, points at their centres in
        latitude. ``regular-poles``: rows every `degrees` from pole to pole. ``octahedral``: the solver's latitudes,
        see :func:`etesian.data.grids.octahedral`.
    transform : SphericalTransform
        Of the solver.
    degrees : float or None
        Spacing of a regular grid; None stands for 5 there, and must be None for the others.

    Raises
    ------
    UserError
        Unknown kind, a spacing that does not divide 180, or one for a grid that has none.
    """
    if kind not in GRIDS:
        raise UserError(f"unknown grid {kind!r}", where="--grid", allowed=", ".join(GRIDS))
    if kind.startswith("regular"):
        degrees = 5.0 if degrees is None else degrees
        try:
            return regular(degrees, poles=kind == "regular-poles")
        except ValueError as error:
            raise UserError(f"--degrees: {error}", where="--degrees", allowed="5, 2.5, 1, ...") from error
    if degrees is not None:
        raise UserError(
            f"--degrees {degrees:g} has no meaning for the {kind} grid, which follows the truncation",
            where="--degrees",
            mend="leave it out, or choose --grid regular",
        )
    rows = np.ascontiguousarray(transform.latitudes[::-1])
    if kind == "gaussian":
        return Grid(f"n{transform.nlat // 2}", rows, (transform.longitudes,) * transform.nlat)
    return octahedral(rows)


class Evaluator:
    """Evaluates a state at the points of a grid: sums of spherical harmonics, no interpolation.

    Parameters
    ----------
    grid : Grid
        The points.
    truncation : int
        T.
    """

    def __init__(self, grid: Grid, truncation: int) -> None:
        cosine = np.where(np.abs(grid.row_latitudes) == 90.0, 0.0, np.cos(np.radians(grid.row_latitudes)))
        sine = np.sin(np.radians(grid.row_latitudes))
        self._functions, _ = legendre(truncation, sine, cosine)  # M J N
        self._functions_over, self._derivatives_over = legendre(truncation, sine, cosine, over_cosine=True)
        n = np.arange(1, truncation + 1)
        self._inverse_laplacian = np.concatenate([[0.0], -(EARTH_RADIUS**2) / (n * (n + 1.0))])  # N
        self._m = 1j * np.arange(truncation + 1)[:, None]  # M 1
        self._groups = self._group_rows(grid)
        self._num_rows = len(grid.row_latitudes)
        starts = np.cumsum([0, *(len(row) for row in grid.row_longitudes)])
        self._positions = [starts[row] for row in range(self._num_rows)]
        self._num_points = int(starts[-1])

    def scalar(self, spectral: Complex) -> Real:
        """Field (G,) of coefficients (M, N)."""
        return self._along_rows(_rows(self._functions, spectral))

    def wind(self, vorticity: Complex, divergence: Complex) -> tuple[Real, Real]:
        """Eastward and northward wind (G,), m s-1, of vorticity and divergence (M, N), s-1; finite at the poles."""
        psi, chi = self._inverse_laplacian * vorticity, self._inverse_laplacian * divergence
        east = _rows(self._functions_over, self._m * chi) - _rows(self._derivatives_over, psi)
        north = _rows(self._functions_over, self._m * psi) + _rows(self._derivatives_over, chi)
        return self._along_rows(east) / EARTH_RADIUS, self._along_rows(north) / EARTH_RADIUS

    def fields(self, model: ShallowWater, state: State) -> Real:
        """Eastward wind, northward wind, height of the free surface (m) and vorticity (s-1): (4, G)."""
        east, north = self.wind(state.vorticity, state.divergence)
        height = self.scalar(state.geopotential + model.ground) / GRAVITY
        return np.stack([east, north, height, self.scalar(state.vorticity)])

    def _group_rows(self, grid: Grid) -> list[tuple[list[int], Real]]:
        """Rows that share their longitudes, with the waves there: cosines, then minus sines (2M, I)."""
        groups: dict[bytes, tuple[list[int], Real]] = {}
        for row, longitudes in enumerate(grid.row_longitudes):
            key = longitudes.tobytes()
            if key not in groups:
                angle = self._m.imag * np.radians(longitudes)
                weight = np.where(self._m.imag > 0, 2.0, 1.0)  # m and -m
                groups[key] = ([], np.concatenate([weight * np.cos(angle), -weight * np.sin(angle)]))
            groups[key][0].append(row)
        return list(groups.values())

    def _along_rows(self, waves: Complex) -> Real:
        """Sum the waves (J, M) of each row at its points: (G,)."""
        parts = np.concatenate([waves.real, waves.imag], axis=1)  # J 2M
        field = np.empty(self._num_points)
        for rows, basis in self._groups:
            values = parts[rows] @ basis  # rows I
            for row, line in zip(rows, values, strict=True):
                field[self._positions[row] : self._positions[row] + len(line)] = line
        return field


def _rows(functions: Real, spectral: Complex) -> Complex:
    """Sum over n: waves (J, M) of coefficients (M, N) with functions (M, J, N)."""
    both = np.stack([spectral.real, spectral.imag], axis=2)  # M N 2
    waves = functions @ both  # M J 2
    return (waves[..., 0] + 1j * waves[..., 1]).T
