"""Grids of the stores that are made here: rows of equal latitude, by name where they have one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_legendre

from etesian.errors import UserError, did_you_mean

Real = NDArray[np.floating]

REDUCED = (32, 48, 80, 128, 160, 200, 256, 320, 400, 512, 640)
"""Numbers of the classical reduced Gaussian grids whose rows ecCodes knows."""

NAMES = "oN, an octahedral reduced Gaussian grid (o32, o96, o1280, ...); " + ", ".join(
    f"n{number}" for number in REDUCED
) + "; regular-Ddeg (regular-5deg)"  # fmt: skip
"""What :func:`named_grid` takes, in words."""

_LARGEST = 2560
_USUAL = ("o32", "o48", "o96", "o160", "o320", "o400", "o640", "o1280", "regular-5deg", "regular-1deg")


@dataclass(frozen=True)
class Grid:
    """Points in rows of equal latitude, north to south, each row from its first longitude eastwards.

    Attributes
    ----------
    name : str
        The store's ``resolution``.
    row_latitudes : numpy.ndarray
        Shape (J,), degrees.
    row_longitudes : tuple of numpy.ndarray
        One (I_j,) a row, degrees.
    """

    name: str
    row_latitudes: Real
    row_longitudes: tuple[Real, ...]

    @property
    def row_lengths(self) -> list[int]:
        """Points of each row (J,)."""
        return [len(row) for row in self.row_longitudes]

    @property
    def latitudes(self) -> Real:
        """Latitude of every point (G,), degrees."""
        return np.repeat(self.row_latitudes, self.row_lengths)

    @property
    def longitudes(self) -> Real:
        """Longitude of every point (G,), degrees."""
        return np.concatenate(self.row_longitudes)

    @property
    def field_shape(self) -> list[int]:
        """[J, I] where the rows are of one length, [G] otherwise."""
        lengths = set(self.row_lengths)
        return [len(self.row_latitudes), lengths.pop()] if len(lengths) == 1 else [sum(self.row_lengths)]


def named_grid(name: str) -> Grid:
    """Make a grid by its name: ``o96``, ``n320``, ``regular-5deg``.

    Raises
    ------
    UserError
        There is no such grid, or the library that knows its rows is missing.
    """
    plain = name.strip().lower()
    if found := re.fullmatch(r"o([0-9]{1,4})", plain):
        number = int(found[1])
        if 1 <= number <= _LARGEST:
            return octahedral(gaussian_latitudes(number))
    if (found := re.fullmatch(r"n([0-9]{1,4})", plain)) and int(found[1]) in REDUCED:
        return reduced_gaussian(int(found[1]))
    if found := re.fullmatch(r"regular-([0-9]+(?:\.[0-9]+)?)(?:deg)?", plain):
        try:
            return regular(float(found[1]))
        except ValueError as error:
            raise UserError(f"--grid {name}: {error}", where="--grid", allowed=NAMES) from error
    known = [*_USUAL, *(f"n{number}" for number in REDUCED)]
    raise UserError(f"there is no grid {name!r}", where="--grid", allowed=NAMES, mend=did_you_mean(plain, known))


def gaussian_latitudes(number: int) -> Real:
    """Return the 2 N Gaussian latitudes, degrees, north to south: the roots of the Legendre polynomial."""
    return np.degrees(np.arcsin(roots_legendre(2 * number)[0][::-1]))


def octahedral(latitudes: Real) -> Grid:
    """Make the octahedral grid on Gaussian latitudes (2 N,), degrees, north to south.

    It has 20 points on the row next to a pole and 4 more on each row towards the equator (Malardel et al. 2016,
    ECMWF Newsletter 146, 23-28).
    """
    rows = len(latitudes)
    return reduced(f"o{rows // 2}", latitudes, [20 + 4 * min(row, rows - 1 - row) for row in range(rows)])


def reduced_gaussian(number: int) -> Grid:
    """Make a classical reduced Gaussian grid; the points of each row are those of ecCodes' samples.

    Raises
    ------
    UserError
        ecCodes is missing.
    """
    try:
        import eccodes
    except (ImportError, RuntimeError) as error:  # it raises the latter where its own library is not found
        raise UserError(
            f"the rows of the grid n{number} come from ecCodes, which can't be imported: {error}",
            where="--grid",
            mend=f"pip install eccodes, or an octahedral grid such as o{number}",
        ) from error
    sample = eccodes.codes_new_from_samples(f"reduced_gg_pl_{number}_grib2", eccodes.CODES_PRODUCT_GRIB)
    try:
        points = [int(count) for count in eccodes.codes_get_array(sample, "pl")]
    finally:
        eccodes.codes_release(sample)
    return reduced(f"n{number}", gaussian_latitudes(number), points)


def reduced(name: str, latitudes: Real, points: Sequence[int]) -> Grid:
    """Make a grid of rows of so many evenly spaced points, the first at longitude 0."""
    return Grid(name, latitudes, tuple(360.0 / count * np.arange(count) for count in points))


def regular(degrees: float, *, poles: bool = False) -> Grid:
    """Make a grid of cells of so many degrees; points at their centres in latitude, or rows from pole to pole.

    Raises
    ------
    ValueError
        The spacing does not divide 180, or is finer than any grid here.
    """
    if not np.isfinite(degrees):
        raise ValueError(f"a spacing of {degrees:g} degrees does not divide 180")
    rows = round(min(180.0 / degrees, 1e9)) if degrees > 1e-9 else 0
    if rows < 2 or abs(rows * degrees - 180.0) > 1e-9:
        raise ValueError(f"a spacing of {degrees:g} degrees does not divide 180")
    if rows > 2 * _LARGEST:
        raise ValueError(f"a spacing of {degrees:g} degrees is finer than {90.0 / _LARGEST:g}")
    latitudes = 90.0 - degrees * np.arange(rows + 1) if poles else 90.0 - degrees * (np.arange(rows) + 0.5)
    return Grid(f"{degrees:g}x{degrees:g}", latitudes, (degrees * np.arange(2 * rows),) * len(latitudes))
