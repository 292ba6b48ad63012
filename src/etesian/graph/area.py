"""Area of the cell that each node stands for, on any grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError, cKDTree

from etesian.errors import UserError
from etesian.graph.nodes import DATASET_KEY, Floats, Ints

SAME_PLACE = 1e-6
"""Points that agree to this much (6 m on the Earth) are one place."""

GAP_ANGLE = np.deg2rad(10.0)
GAP_FACTOR = 5.0


def cell_areas(xyz: Floats) -> Floats:
    """Return the area of each node's spherical Voronoi cell on the unit sphere.

    Nodes at one place share their cell's area equally, so that a grid that repeats the pole point
    has the same total there as one that does not. On a grid that covers the sphere the areas add up
    to 4 pi. Where the nodes leave a gap (around a regional grid, or beyond a grid's last row), the cell
    of a node at its rim would reach across it; such a node gets the area of the nearest node whose
    cell touches no gap. A gap is an empty circle with a radius of more than 10 degrees and 5 times the
    median of the largest empty circles between the nodes, or of 90 degrees.

    Parameters
    ----------
    xyz : ndarray, shape (N, 3)
        Unit vectors.

    Returns
    -------
    ndarray, shape (N,)
        Steradians.

    Raises
    ------
    UserError
        If there are fewer than four places, if all lie on one circle, or if no cell is whole.

    Notes
    -----
    The Delaunay triangles on a sphere are the facets of the points' convex hull, and the outward
    normal of a facet is its triangle's circumcentre. The signed area of the spherical triangle of
    an edge and the circumcentre belongs half to either end of the edge; its formula is van Oosterom
    and Strackee (1983), IEEE Transactions on Biomedical Engineering 30, 125.
    """
    places, place_of = _distinct_places(xyz)
    areas = _place_areas(places)
    return (areas / np.bincount(place_of))[place_of]


def area_weights(xyz: Floats) -> Floats:
    """Return the cell areas divided by the largest of them, shape (N, 1)."""
    areas = cell_areas(xyz)
    return (areas / areas.max())[:, None]


def _distinct_places(xyz: Floats) -> tuple[Floats, Ints]:
    """Return the distinct points, (P, 3), and which of them each point is, (N,)."""
    grid = np.rint((xyz + 1.0) / SAME_PLACE).astype(np.int64)  # 0 to 2,000,000: 21 bits an axis
    keys = (grid[:, 0] << 42) | (grid[:, 1] << 21) | grid[:, 2]
    _, first, place_of = np.unique(keys, return_index=True, return_inverse=True)
    return xyz[first], place_of


def _place_areas(places: Floats) -> Floats:
    hull = _hull(places)
    centres, radii = hull.equations[:, :3], np.arccos(np.clip(-hull.equations[:, 3], -1.0, 1.0))
    triangles = _counter_clockwise(places, hull.simplices.astype(np.int64), centres)
    areas = np.zeros(len(places))
    for i, j in ((0, 1), (1, 2), (2, 0)):
        half = 0.5 * _signed_area(centres, places[triangles[:, i]], places[triangles[:, j]])
        areas += np.bincount(triangles[:, i], half, len(places)) + np.bincount(triangles[:, j], half, len(places))

    gap = (radii >= np.pi / 2) | ((radii > GAP_ANGLE) & (radii > GAP_FACTOR * np.quantile(radii, 0.5, method="lower")))
    in_hull, at_rim = np.zeros((2, len(places)), dtype=bool)
    in_hull[triangles] = True
    at_rim[triangles[gap]] = True
    whole = np.flatnonzero(in_hull & ~at_rim)
    if not len(whole):
        raise UserError(
            "none of the data nodes has a cell of its own: all lie at the rim of the region they cover",
            where=DATASET_KEY,
            allowed="a grid with nodes inside its rim",
        )
    if at_rim.any():
        rim = np.flatnonzero(at_rim)
        areas[rim] = areas[whole[cKDTree(places[whole]).query(places[rim])[1]]]
    return _share_with_lost(places, in_hull, areas)


def _hull(places: Floats) -> ConvexHull:
    try:
        return ConvexHull(places)
    except (QhullError, ValueError) as cause:
        raise UserError(
            f"{len(places)} distinct data nodes that lie on one circle, or fewer than four, have no area weights",
            where=DATASET_KEY,
            allowed="a grid of at least four points, not all on one circle",
        ) from cause


def _counter_clockwise(places: Floats, triangles: Ints, outward: Floats) -> Ints:
    a, b, c = (places[triangles[:, i]] for i in range(3))
    clockwise = (np.cross(b - a, c - a) * outward).sum(axis=1) < 0
    triangles[clockwise] = triangles[clockwise][:, [0, 2, 1]]
    return triangles


def _signed_area(apex: Floats, a: Floats, b: Floats) -> Floats:
    """Return the area of spherical triangles (T, 3), positive where apex, a, b turn counter-clockwise."""
    volume = (apex * np.cross(a - apex, b - apex)).sum(axis=1)
    return 2.0 * np.arctan2(volume, 1.0 + (apex * a).sum(axis=1) + (apex * b).sum(axis=1) + (a * b).sum(axis=1))


def _share_with_lost(places: Floats, in_hull: NDArray[np.bool_], areas: Floats) -> Floats:
    """Let a place that rounding left out of the hull share the area of the nearest one that is in it."""
    if in_hull.all():
        return areas
    corners, host = np.flatnonzero(in_hull), np.arange(len(places))
    host[~in_hull] = corners[cKDTree(places[corners]).query(places[~in_hull])[1]]
    return (areas / np.maximum(np.bincount(host, minlength=len(places)), 1))[host]
