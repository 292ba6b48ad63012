"""Spherical harmonics of triangular truncation on a Gaussian grid: transforms of scalars and of vectors.

Legend of the array letters: M zonal wavenumbers m = 0..T; N total wavenumbers n = 0..T (coefficients with
n < m are zero); F fields; J latitudes, south to north; I longitudes, from 0 eastwards.

A real field is ``sum_m sum_n s_n^m P_n^m(sin latitude) exp(i m longitude)`` with ``s_n^-m = conj(s_n^m)``. The
associated Legendre functions carry the norm ``1/2 integral P_n^m(mu)^2 dmu = 1``, so that the coefficient (0, 0)
is the global mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from etesian.errors import UserError

EARTH_RADIUS = 6.37122e6
"""Radius of the sphere in m (Williamson et al. 1992, J. Comput. Phys. 102, 211-224)."""

Real = NDArray[np.floating]
Complex = NDArray[np.complex128]


def epsilon(m: Real | np.floating, n: Real) -> Real:
    """Return ``sqrt((n^2 - m^2) / (4 n^2 - 1))``, zero where n <= m: the factor of all recurrences in n."""
    return np.sqrt(np.maximum(n**2 - m**2, 0.0) / (4.0 * n**2 - 1.0))


def legendre(truncation: int, sine: Real, cosine: Real, *, over_cosine: bool = False) -> tuple[Real, Real]:
    """Associated Legendre functions and their derivatives.

    Upwards in n by ``eps_n P_n = mu P_n-1 - eps_n-1 P_n-2``; the derivative by
    ``(1 - mu^2) dP_n/dmu = (n + 1) eps_n P_n-1 - n eps_n+1 P_n+1`` (Hack and Jakob 1992, NCAR/TN-343+STR, sect. 3).

    Parameters
    ----------
    truncation : int
        T.
    sine, cosine : numpy.ndarray
        Shape (J,), of the latitude.
    over_cosine : bool
        Divide both by the cosine, as wind components need, finite at the poles too. P is then given for m > 0 only
        (zero for m = 0, where wind components have no such term).

    Returns
    -------
    functions, derivatives : numpy.ndarray
        Shape (M, J, N): ``P_n^m`` and ``(1 - mu^2) dP_n^m/dmu``.
    """
    size = truncation + 1
    table = np.zeros((size, len(sine), size + 2))  # M J n, up to n = T + 2 so that every row m has two starts
    for m in range(size):
        # P_m^m = sqrt(prod_{k=1..m} (2k + 1) / 2k) cos^m
        factor = np.sqrt(np.prod((2.0 * np.arange(1, m + 1) + 1.0) / (2.0 * np.arange(1, m + 1))))
        power = m - 1 if over_cosine and m > 0 else m
        table[m, :, m] = factor * cosine**power
        eps = epsilon(np.float64(m), np.arange(size + 2, dtype=np.float64))
        for n in range(m + 1, size + 1):
            before = eps[n - 1] * table[m, :, n - 2] if n > m + 1 else 0.0
            table[m, :, n] = (sine * table[m, :, n - 1] - before) / eps[n]
    m_grid, n_grid = np.arange(size)[:, None, None] * 1.0, np.arange(size)[None, None, :] * 1.0
    below = np.concatenate([np.zeros_like(table[:, :, :1]), table[:, :, : size - 1]], axis=2)
    above = table[:, :, 1 : size + 1]
    derivatives = (n_grid + 1) * epsilon(m_grid, n_grid) * below - n_grid * epsilon(m_grid, n_grid + 1) * above
    functions = table[:, :, :size]
    mask = (n_grid >= m_grid).astype(np.float64)
    if over_cosine:
        # m = 0: the derivative vanishes at the poles with the cosine squared
        safe = np.where(cosine > 1e-12, cosine, np.inf)
        derivatives[0] /= safe[:, None]
        functions = np.where(m_grid > 0, functions, 0.0)
    return functions * mask, derivatives * mask


class SphericalTransform:
    """Transforms between a Gaussian grid and spherical harmonics, for several fields at once.

    Parameters
    ----------
    truncation : int
        T, the largest total wavenumber.

    Attributes
    ----------
    nlat, nlon : int
        Size of the grid, the least that keeps quadratic products free of aliasing: ``nlat >= (3T + 1) / 2``,
        even, and ``nlon = 2 nlat`` (Orszag 1970, J. Atmos. Sci. 27, 890-895).
    latitudes, longitudes : numpy.ndarray
        Degrees, (J,) and (I,).
    sine, cosine, weights : numpy.ndarray
        Shape (J,): sine and cosine of the latitude; Gaussian weights, whose sum is 2.
    laplacian : numpy.ndarray
        Shape (N, 1): ``-n (n + 1) / a^2``, m-2.

    Raises
    ------
    UserError
        The truncation is below 2.
    """

    def __init__(self, truncation: int) -> None:
        if truncation < 2:
            raise UserError(f"truncation {truncation} is too low", where="truncation", allowed="a whole number >= 2")
        self.truncation = truncation
        self.size = truncation + 1
        self.nlat = 2 * -(-(3 * truncation + 1) // 4)
        self.nlon = 2 * self.nlat
        self.sine, self.weights = np.polynomial.legendre.leggauss(self.nlat)
        self.cosine = np.sqrt(1.0 - self.sine**2)
        self.latitudes = np.degrees(np.arcsin(self.sine))
        self.longitudes = 360.0 / self.nlon * np.arange(self.nlon)
        n = np.arange(self.size, dtype=np.float64)[:, None]
        self.laplacian = -n * (n + 1.0) / EARTH_RADIUS**2  # N 1
        inverse = np.zeros_like(self.laplacian)
        inverse[1:] = 1.0 / self.laplacian[1:]
        self.inverse_laplacian = inverse
        functions, derivatives = legendre(truncation, self.sine, self.cosine)  # M J N each
        self._m = 1j * np.arange(self.size)[:, None, None]  # M 1 1, the zonal derivative
        self._bands = _bands(self.size)
        self._synthesis = [np.ascontiguousarray(functions[band, :, band.start :]) for band in self._bands]  # M J N
        turned = (functions * (0.5 * self.weights)[:, None]).transpose(0, 2, 1)  # M N J
        self._analysis = [np.ascontiguousarray(turned[band, band.start :]) for band in self._bands]
        # Vectors: P and H side by side, so that one product does both terms of a component.
        both = np.stack([functions, derivatives], axis=2) / EARTH_RADIUS  # M J 2 N
        scaled = both * (0.5 * self.weights / self.cosine**2)[:, None, None]
        self._vector_synthesis = [_flat(both[band, ..., band.start :], 2) for band in self._bands]  # M J 2N
        turned = scaled.transpose(0, 3, 2, 1)  # M N 2 J
        self._vector_analysis = [_flat(turned[band, band.start :], 2) for band in self._bands]  # M N 2J

    def synthesis(self, spectral: Complex) -> Real:
        """Evaluate coefficients (M, N, F) on the grid (I, J, F)."""
        return self._to_grid(self._from_spectral(self._synthesis, spectral[:, None]))

    def analysis(self, grid: Real) -> Complex:
        """Project a grid (I, J, F) onto coefficients (M, N, F)."""
        return self._to_spectral(self._analysis, self._to_waves(grid))

    def wind(self, vorticity: Complex, divergence: Complex) -> Real:
        """Wind times the cosine of the latitude.

        ``U = (d(chi)/dlon - (1 - mu^2) d(psi)/dmu) / a`` and ``V = (d(psi)/dlon + (1 - mu^2) d(chi)/dmu) / a``
        with stream function psi and velocity potential chi, the inverse Laplacians of vorticity and divergence.

        Parameters
        ----------
        vorticity, divergence : numpy.ndarray
            Shape (M, N), s-1.

        Returns
        -------
        numpy.ndarray
            Shape (I, J, 2): U and V, m s-1.
        """
        return self._to_grid(
            self._from_spectral(self._vector_synthesis, self._wind_coefficients(vorticity, divergence))
        )

    def curl_and_divergence(self, vectors: Real) -> tuple[Complex, Complex]:
        """Curl and divergence of vector fields that are given times the cosine of the latitude.

        Integrated by parts in latitude, so that no derivative of grid values is taken and the (0, 0) coefficients
        are zero exactly (Hack and Jakob 1992, eq. 4.14 onwards).

        Parameters
        ----------
        vectors : numpy.ndarray
            Shape (I, J, F, 2): eastward and northward component times the cosine.

        Returns
        -------
        curl, divergence : numpy.ndarray
            Shape (M, N, F).
        """
        waves = self._to_waves(vectors.reshape(*vectors.shape[:2], -1))  # M J (F 2)
        waves = waves.reshape(*waves.shape[:2], -1, 2)
        east, north = waves[..., 0], waves[..., 1]
        m = self._m
        upper = np.concatenate([m * north, m * east], axis=2)  # multiplies P
        lower = np.concatenate([east, -north], axis=2)  # multiplies H
        both = self._to_spectral(self._vector_analysis, np.concatenate([upper, lower], axis=1))  # M N 2F
        half = both.shape[2] // 2
        return both[..., :half], both[..., half:]

    def _wind_coefficients(self, vorticity: Complex, divergence: Complex) -> Complex:
        psi, chi = self.inverse_laplacian[:, 0] * vorticity, self.inverse_laplacian[:, 0] * divergence
        m = self._m[:, :, 0]
        coefficients = np.empty((self.size, 2, self.size, 2), complex)  # M, P or H, N, east or north
        np.multiply(m, chi, out=coefficients[:, 0, :, 0])
        np.multiply(m, psi, out=coefficients[:, 0, :, 1])
        np.negative(psi, out=coefficients[:, 1, :, 0])
        coefficients[:, 1, :, 1] = chi
        return coefficients

    def _from_spectral(self, matrices: Sequence[Real], columns: Complex) -> Complex:
        """Multiply matrices (M, J, K N) with columns (M, K, N, F), band by band: (M, J, F)."""
        parts = zip(self._bands, matrices, strict=True)
        return np.concatenate([_product(table, _flat(columns[band, :, band.start :], 1)) for band, table in parts])

    def _to_spectral(self, matrices: Sequence[Real], columns: Complex) -> Complex:
        """Multiply matrices (M, N, K J) with columns (M, K J, F), band by band: (M, N, F)."""
        result = np.zeros((self.size, self.size, columns.shape[2]), complex)
        for band, table in zip(self._bands, matrices, strict=True):
            result[band, band.start :] = _product(table, columns[band])
        return result

    def _to_grid(self, waves: Complex) -> Real:
        return irfft(waves, n=self.nlon, axis=0, norm="forward")  # I J F

    def _to_waves(self, grid: Real) -> Complex:
        return rfft(grid, axis=0, norm="forward")[: self.size]  # M J F


def _bands(size: int) -> list[slice]:
    """Up to four ranges of m; each leaves out the n below its first m, where nothing is."""
    bounds = np.unique(np.linspace(0, size, 5).round().astype(int))
    return [slice(int(low), int(high)) for low, high in itertools.pairwise(bounds)]


def _flat(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """Merge `axis` with the next, contiguous in memory."""
    return np.ascontiguousarray(array).reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def _product(matrices: Real, columns: Complex) -> Complex:
    """Multiply real matrices (M, A, B) with complex columns (M, B, F)."""
    columns = np.ascontiguousarray(columns)
    return np.matmul(matrices, columns.view(np.float64)).view(np.complex128)
