"""Power spectra on the sphere, straight from rows of equal latitude: nothing is interpolated.

Each row is transformed in longitude as it is, whatever its number of points, and the rows are summed with the weights
of a quadrature in latitude. On a Gaussian grid, regular or reduced, that is Gauss's; on other rows, such as those of a
regular grid, the one that is exact for polynomials of as high a degree as there are rows.

Legend of the array letters: J rows, M zonal wavenumbers m = 0..T, N total wavenumbers n = 0..T, F fields, G points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss, legvander
from numpy.typing import NDArray
from scipy.fft import rfft

from etesian.data.shallow_water.harmonics import epsilon
from etesian.inference.evaluation import LeadTime

_SAME_ROW = 1e-4  # degrees
_EVEN = 1e-3  # degrees
_FEWEST_ROWS = 8


class NoRows(ValueError):
    """A grid whose spectrum can't be told without interpolation; the text says why."""


class RowTransform:
    """Spherical-harmonic analysis of fields on rows of equal latitude.

    Parameters
    ----------
    latitudes, longitudes : ndarray (G,)
        Degrees; each row in one piece, from west to east.

    Attributes
    ----------
    truncation : int
        T, the highest total wavenumber that the quadrature resolves: J - 1 on Gaussian rows, (J - 1) / 2 on others.
    quadrature : str
        What the rows are summed with, in words.
    weights : ndarray (J,)
        Those of the quadrature; their sum is 2.
    first_longitudes : ndarray (J,)
        Longitude of each row's first point, degrees.

    Raises
    ------
    NoRows
        If the points form no such rows, or those do not cover the sphere.
    """

    def __init__(self, latitudes: NDArray[Any], longitudes: NDArray[Any]) -> None:
        starts = np.flatnonzero(np.abs(np.diff(latitudes, prepend=np.inf)) > _SAME_ROW)
        self._rows = [slice(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(latitudes)], strict=True)]
        row_latitudes = np.asarray(latitudes, dtype=np.float64)[starts]
        if len(self._rows) < _FEWEST_ROWS or len(latitudes) < 4 * len(self._rows):
            raise NoRows("the grid has no rows of equal latitude")
        if not (np.all(np.diff(row_latitudes) < 0) or np.all(np.diff(row_latitudes) > 0)):
            raise NoRows("the rows of the grid are not in order of latitude")
        self.first_longitudes = np.array([float(longitudes[row.start]) for row in self._rows])
        if not all(_goes_round(np.asarray(longitudes[row], dtype=np.float64)) for row in self._rows):
            raise NoRows("the rows of the grid do not go evenly round the globe")
        self._sine, self.weights, self.quadrature, truncation = _quadrature(row_latitudes)
        self.truncation = min(truncation, (max(self.row_lengths) - 1) // 2)
        self.points = len(latitudes)

    @property
    def row_lengths(self) -> list[int]:
        """Points of each row (J,)."""
        return [row.stop - row.start for row in self._rows]

    def power(self, fields: NDArray[Any]) -> NDArray[np.float64]:
        """Return the power [F, N] of fields [F, G] by total wavenumber; its sum over n is the mean square.

        Parameters
        ----------
        fields : ndarray [F, G]
            Without NaN.
        """
        waves = self._waves(np.asarray(fields, dtype=np.float64))  # [M, J, F]
        power = np.zeros((self.truncation + 1, fields.shape[0]))
        for m, table in enumerate(self.legendre()):
            coefficients = table @ (0.5 * self.weights[:, None] * waves[m])
            power[m:] += (1.0 if m == 0 else 2.0) * np.abs(coefficients) ** 2
        return power.T

    def legendre(self) -> Iterator[NDArray[np.float64]]:
        """Yield P_n^m of the rows, [N - m, J] for n = m..T, for m = 0..T."""
        cosine = np.sqrt(1.0 - self._sine**2)
        diagonal = np.ones_like(self._sine)  # P_m^m
        for m in range(self.truncation + 1):
            if m:
                diagonal = diagonal * cosine * np.sqrt((2 * m + 1) / (2 * m))
            yield _legendre_row(m, self.truncation, self._sine, diagonal)

    def _waves(self, fields: NDArray[np.float64]) -> NDArray[np.complex128]:
        """Transform each row in longitude; wavenumbers that a row does not resolve are zero there."""
        waves = np.zeros((self.truncation + 1, len(self._rows), len(fields)), complex)
        for j, row in enumerate(self._rows):
            points = row.stop - row.start
            count = min(self.truncation + 1, (points + 1) // 2)
            turn = np.exp(-1j * np.arange(count) * np.deg2rad(self.first_longitudes[j]))
            waves[:count, j] = (rfft(fields[:, row], axis=1, norm="forward")[:, :count] * turn).T
        return waves


class Spectra:
    """Mean power spectra of forecast, truth and error, of some variables at some lead times.

    Parameters
    ----------
    transform : RowTransform
        Of the grid.
    leads : sequence of int (L,)
        Lead times, from 0.
    columns : sequence of int (V,)
        Positions of the variables among the outputs.
    """

    NAMES = ("truth", "forecast", "error")

    def __init__(self, transform: RowTransform, leads: Sequence[int], columns: Sequence[int]) -> None:
        self.transform, self.leads, self.columns = transform, tuple(leads), list(columns)
        self._sums = np.zeros((3, len(self.leads), len(self.columns), transform.truncation + 1))
        self._count = np.zeros((len(self.leads), len(self.columns)), dtype=np.int64)

    def add(self, step: LeadTime) -> None:
        """Take in one lead time of a batch; a field with a NaN in truth or forecast is left out."""
        if step.lead not in self.leads:
            return
        row = self.leads.index(step.lead)
        points, variables = self.transform.points, len(self.columns)
        truth, forecast = (
            field[..., self.columns].double().movedim(-1, 0).reshape(variables, -1, points).numpy()  # [V, B E, G]
            for field in (step.truth, step.forecast)
        )
        whole = ~(np.isnan(truth) | np.isnan(forecast)).any(axis=2)  # [V, B E]
        fields = np.nan_to_num(np.stack([truth, forecast, forecast - truth]))
        power = self.transform.power(fields.reshape(-1, points)).reshape(
            3, *whole.shape, -1
        )  # together: one pass over P
        self._sums[:, row] += np.where(whole[..., None], power, 0.0).sum(axis=2)
        self._count[row] += whole.sum(axis=1)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean power [3, L, V, N] of what :attr:`NAMES` says; NaN where no field was whole."""
        counts = np.broadcast_to(self._count[..., None], self._sums.shape)
        return np.divide(self._sums, counts, out=np.full(self._sums.shape, np.nan), where=counts > 0)


def _goes_round(row: NDArray[np.float64]) -> bool:
    steps = np.diff(row, append=row[:1]) % 360.0
    return len(row) == 1 or bool(np.abs(steps - 360.0 / len(row)).max() < _EVEN)


def _quadrature(latitudes: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any], str, int]:
    """Return sines, weights (sum 2), the name of the quadrature and the truncation that it resolves."""
    rows, sine = len(latitudes), np.sin(np.deg2rad(latitudes))
    gauss, weights = leggauss(rows)
    if latitudes[0] > latitudes[-1]:
        gauss, weights = gauss[::-1], weights[::-1]
    if np.abs(np.rad2deg(np.arcsin(gauss)) - latitudes).max() < _EVEN:
        return gauss, weights, "Gaussian quadrature", rows - 1
    degrees = legvander(sine, rows - 1)  # [J, degree]: sum_j w_j P_k(mu_j) = 2 for k = 0, 0 for any other
    weights = np.linalg.solve(degrees.T, np.eye(rows)[0] * 2.0)
    if not np.all(weights > 0):
        raise NoRows("the rows of the grid do not cover the globe from pole to pole")
    return sine, weights, "interpolatory quadrature", (rows - 1) // 2


def _legendre_row(m: int, truncation: int, sine: NDArray[Any], diagonal: NDArray[Any]) -> NDArray[np.float64]:
    """Return P_n^m for n = m..T, [N - m, J], upwards by eps_n P_n = mu P_n-1 - eps_n-1 P_n-2."""
    eps = epsilon(np.float64(m), np.arange(truncation + 1, dtype=np.float64))
    table = np.zeros((truncation + 1 - m, len(sine)))
    table[0] = diagonal
    for row in range(1, len(table)):
        n = m + row
        before = eps[n - 1] * table[row - 2] if row > 1 else 0.0
        table[row] = (sine * table[row - 1] - before) / eps[n]
    return table
