"""Places on the unit sphere: checked coordinates, and their Cartesian form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etesian.errors import Problem, UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DATASET_KEY = "system.input.dataset"
"""Config key behind the data nodes' coordinates, named in errors about them."""

POLE_COSINE = 1e-12
"""A point whose cosine of latitude is below this is the pole itself, whatever its longitude."""


def check_coordinates(latitudes: Floats, longitudes: Floats) -> tuple[Floats, Floats]:
    """Return the coordinates as float64, checked.

    Parameters
    ----------
    latitudes, longitudes : ndarray, shape (G,)
        Degrees; longitudes in any convention from -360 to 360.

    Raises
    ------
    ValueError
        If the two are not one-dimensional arrays of one length.
    UserError
        If there is no point, or a coordinate is not finite or out of its range.
    """
    latitudes, longitudes = np.asarray(latitudes, np.float64), np.asarray(longitudes, np.float64)
    if latitudes.ndim != 1 or latitudes.shape != longitudes.shape:
        raise ValueError(f"latitudes {latitudes.shape} and longitudes {longitudes.shape} must be (G,) both")
    if latitudes.size == 0:
        raise UserError("the dataset has no grid points", where=DATASET_KEY)
    problems = []
    for name, values, bound in (("latitude", latitudes, 90.0), ("longitude", longitudes, 360.0)):
        wrong = ~(np.abs(values) <= bound)  # catches NaN too
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            what = (
                f"{int(wrong.sum())} of {values.size} grid points have no valid {name} (point {first}: {values[first]})"
            )
            problems.append(Problem(what, DATASET_KEY, f"-{bound:g} to {bound:g} degrees"))
    if problems:
        raise UserError.collect(problems)
    return latitudes, longitudes


def to_xyz(latlon: Floats) -> Floats:
    """Turn latitudes and longitudes into unit vectors.

    Parameters
    ----------
    latlon : ndarray, shape (N, 2)
        Radians.

    Returns
    -------
    ndarray, shape (N, 3)
        All points at one pole have exactly the same vector.
    """
    lat, lon = latlon[:, 0], latlon[:, 1]
    cos_lat = np.cos(lat)
    cos_lat[cos_lat < POLE_COSINE] = 0.0
    return np.stack([cos_lat * np.cos(lon), cos_lat * np.sin(lon), np.sin(lat)], axis=1)


def to_latlon(xyz: Floats) -> Floats:
    """Turn unit vectors (N, 3) into latitudes and longitudes (N, 2) in radians, longitudes from -pi to pi."""
    return np.stack([np.arctan2(xyz[:, 2], np.hypot(xyz[:, 0], xyz[:, 1])), np.arctan2(xyz[:, 1], xyz[:, 0])], axis=1)


def chord_to_arc(chord: Floats) -> Floats:
    """Turn straight distances between points of the unit sphere into great-circle distances, radians."""
    return 2.0 * np.arcsin(np.minimum(0.5 * chord, 1.0))
