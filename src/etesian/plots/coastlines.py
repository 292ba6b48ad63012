"""Coastlines for maps of the globe and of regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILE = Path(__file__).with_suffix(".npy")


def read_coastlines(centre_longitude: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coastlines of the Earth; NaN stands between two lines.

    Parameters
    ----------
    centre_longitude : float
        Longitude in the middle of the map, degrees: lines are cut on the other side of the globe.

    Returns
    -------
    latitudes, longitudes : ndarray (P,)
        Degrees, longitudes within 180 of the centre.
    """
    latitudes, longitudes = np.load(_FILE).astype(np.float64).T
    around = (longitudes - centre_longitude + 180.0) % 360.0 - 180.0
    cuts = np.flatnonzero(np.abs(np.diff(around)) > 180.0) + 1
    return np.insert(latitudes, cuts, np.nan), centre_longitude + np.insert(around, cuts, np.nan)
