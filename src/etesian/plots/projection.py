"""Fields on scattered points as an image: the nearest point of the sphere for each pixel.

One way for every grid: no triangulation, so no gap at the date line and nothing special at the poles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from etesian.plots.coastlines import read_coastlines

Array = NDArray[np.float64]

# Equal Earth projection: Savric, Patterson and Jenny (2019), doi:10.1080/13658816.2018.1504949, eqs. 2 to 5
_A1, _A2, _A3, _A4 = 1.340264, -0.081106, 0.000893, 0.003796
_M = np.sqrt(3.0) / 2.0

_WIDTH = 800  # pixels of a map
_GLOBAL_SHARE = 0.97  # of the sphere's surface near a grid point: drawn as a globe
_REACH = 0.75  # of the spacing: how far from a point of a region a pixel still takes its value
_NONE = np.empty((0, 2))
_HALF_CELL = 0.5  # of the spacing: what is drawn around the outermost points


@dataclass(frozen=True)
class MapFrame:
    """Where each pixel of a map takes its value from.

    Attributes
    ----------
    nearest : ndarray [rows, columns], int
        Grid point of each pixel, rows from south to north; -1 outside of the map or the grid.
    extent : tuple of float
        Left, right, bottom, top in map units.
    outline : ndarray [P, 2]
        Edge of the map, a closed line.
    graticule : tuple of ndarray [P, 2]
        Meridians and parallels.
    coastlines : ndarray [P, 2]
        Those of the Earth, NaN between two lines; empty where none are drawn.
    is_global : bool
        An Equal Earth map of the globe, else latitude against longitude of a region.
    centre_longitude : float
        Longitude in the middle, degrees.
    aspect : float
        Height of a unit of y over the width of a unit of x.
    """

    nearest: NDArray[np.intp]
    extent: tuple[float, float, float, float]
    outline: Array
    graticule: tuple[Array, ...]
    coastlines: Array
    is_global: bool
    centre_longitude: float
    aspect: float

    def image(self, values: Array) -> Array:
        """Return a field [G] as pixels [rows, columns], NaN where there is nothing."""
        return np.where(self.nearest >= 0, np.asarray(values, dtype=np.float64)[self.nearest], np.nan)


def make_frame(latitudes: Array, longitudes: Array, coastlines: bool = True) -> MapFrame:
    """Choose the map for a grid and find the grid point of each pixel.

    Parameters
    ----------
    latitudes, longitudes : ndarray (G,)
        Degrees, in any order and any convention for the longitude.
    coastlines : bool
        Whether those of the Earth are drawn.
    """
    points = unit_vectors(latitudes, longitudes)
    tree = cKDTree(points)
    neighbours = min(9, len(points))
    sample = points[:: max(1, len(points) // 20_000)]
    distances = tree.query(sample, k=neighbours)[0].reshape(len(sample), -1)
    reach = float(np.quantile(distances[:, -1], 0.99))  # chord to the eighth neighbour
    if _covers_the_globe(tree, reach):
        return _global_frame(tree, coastlines)
    close = float(np.quantile(distances[:, min(4, neighbours - 1)], 0.99))
    return _regional_frame(tree, latitudes, longitudes, _REACH * close, coastlines)


def unit_vectors(latitudes: Array, longitudes: Array) -> Array:
    """Return points on the unit sphere (..., 3) for degrees (...)."""
    phi, lam = np.deg2rad(latitudes), np.deg2rad(longitudes)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], axis=-1)


def equal_earth(latitudes: Array, longitudes: Array) -> Array:
    """Project degrees (...) to (..., 2); longitudes from -180 to 180."""
    theta = np.arcsin(_M * np.sin(np.deg2rad(latitudes)))
    x = np.deg2rad(longitudes) * np.cos(theta) / (_M * _slope(theta))
    return np.stack([x, _height(theta)], axis=-1)


def equal_earth_inverse(x: Array, y: Array) -> tuple[Array, Array]:
    """Return latitude and longitude in degrees; the latter beyond 180 outside of the map."""
    theta = np.asarray(y) / _A1
    for _ in range(12):  # Newton: the height grows with theta, with a slope near 1.34 throughout
        theta = np.clip(theta - (_height(theta) - y) / _slope(theta), -np.pi / 3, np.pi / 3)
    latitude = np.rad2deg(np.arcsin(np.clip(np.sin(theta) / _M, -1.0, 1.0)))
    return latitude, np.rad2deg(_M * x * _slope(theta) / np.cos(theta))


def _height(theta: Array) -> Array:
    return theta * (_A1 + _A2 * theta**2 + theta**6 * (_A3 + _A4 * theta**2))


def _slope(theta: Array) -> Array:
    return _A1 + 3 * _A2 * theta**2 + theta**6 * (7 * _A3 + 9 * _A4 * theta**2)


def _covers_the_globe(tree: cKDTree, reach: float) -> bool:
    count = 4000
    steps = np.arange(count) + 0.5  # a golden spiral: equal areas
    latitude = np.rad2deg(np.arcsin(1.0 - 2.0 * steps / count))
    longitude = np.rad2deg(np.pi * (1.0 + np.sqrt(5.0)) * steps)
    distances = tree.query(unit_vectors(latitude, longitude))[0]
    return bool(np.mean(distances <= reach) >= _GLOBAL_SHARE)


def _global_frame(tree: cKDTree, coastlines: bool) -> MapFrame:
    edge = np.linspace(-90.0, 90.0, 181)
    right = equal_earth(edge, np.full_like(edge, 180.0))
    outline = np.concatenate([right, right[::-1] * [-1.0, 1.0], right[:1]])
    width, height = float(right[:, 0].max()), float(right[:, 1].max())
    rows = round(_WIDTH * height / width)
    x, y = np.meshgrid(_centres(-width, width, _WIDTH), _centres(-height, height, rows))
    latitude, longitude = equal_earth_inverse(x, y)
    inside = np.abs(longitude) <= 180.0
    nearest = np.full(x.shape, -1, dtype=np.intp)
    nearest[inside] = tree.query(unit_vectors(latitude[inside], longitude[inside]))[1]
    along = np.linspace(-180.0, 180.0, 2)
    graticule = [equal_earth(edge, np.full_like(edge, meridian)) for meridian in range(-120, 121, 60)]
    graticule += [equal_earth(np.full_like(along, parallel), along) for parallel in range(-60, 61, 30)]
    coast = equal_earth(*read_coastlines(0.0)) if coastlines else _NONE
    return MapFrame(nearest, (-width, width, -height, height), outline, tuple(graticule), coast, True, 0.0, 1.0)


def _regional_frame(tree: cKDTree, latitudes: Array, longitudes: Array, reach: float, coastlines: bool) -> MapFrame:
    mean = unit_vectors(latitudes, longitudes).mean(axis=0)
    centre = float(np.rad2deg(np.arctan2(mean[1], mean[0])))
    around = (np.asarray(longitudes) - centre + 180.0) % 360.0 - 180.0
    south, north = float(np.min(latitudes)), float(np.max(latitudes))
    west, east = centre + float(around.min()), centre + float(around.max())
    margin = float(np.rad2deg(reach)) * _HALF_CELL / _REACH
    south, north = max(-90.0, south - margin), min(90.0, north + margin)
    west, east = max(centre - 180.0, west - margin), min(centre + 180.0, east + margin)
    aspect = float(1.0 / max(0.2, np.cos(np.deg2rad((south + north) / 2))))
    rows = int(np.clip(_WIDTH * (north - south) / (east - west) * aspect, 100, 2 * _WIDTH))
    longitude, latitude = np.meshgrid(_centres(west, east, _WIDTH), _centres(south, north, rows))
    distance, nearest = tree.query(unit_vectors(latitude, longitude))
    outline = np.array([[west, south], [east, south], [east, north], [west, north], [west, south]])
    nearest = np.where(distance <= reach, nearest, -1)
    coast = np.stack(read_coastlines(centre)[::-1], axis=-1) if coastlines else _NONE
    return MapFrame(nearest, (west, east, south, north), outline, (), coast, False, centre, aspect)


def _centres(first: float, last: float, count: int) -> Array:
    step = (last - first) / count
    return np.asarray(first + step * (np.arange(count) + 0.5), dtype=np.float64)
