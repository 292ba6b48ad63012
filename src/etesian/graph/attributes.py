"""Edge attributes: great-circle length, and the direction in which the source lies."""

from __future__ import annotations

import numpy as np

from etesian.errors import UserError
from etesian.graph.nodes import Floats, Ints, chord_to_arc
from etesian.schema.graph import Norm

AT_POLE = 1e-6
"""Cosine of latitude below which a target is at the pole and has no longitude of its own."""

NO_SPREAD = 1e-6
"""Relative spread below which an attribute counts as constant."""


def edge_lengths(src_xyz: Floats, dst_xyz: Floats, edge_index: Ints) -> Floats:
    """Return the great-circle length of each edge.

    Parameters
    ----------
    src_xyz, dst_xyz : ndarray, shape (N_src, 3), (N_dst, 3)
        Unit vectors.
    edge_index : ndarray, shape (2, M)
        Sources and destinations.

    Returns
    -------
    ndarray, shape (M, 1)
        Radians, equal to the haversine formula's.
    """
    chord = np.linalg.norm(src_xyz[edge_index[0]] - dst_xyz[edge_index[1]], axis=1, keepdims=True)
    return chord_to_arc(chord)


def edge_directions(src_xyz: Floats, dst_xyz: Floats, dst_latlon: Floats, edge_index: Ints) -> Floats:
    """Return the direction in which each edge's source lies, seen from its target.

    The sphere is turned by the shortest rotation that brings the target to the north pole; the
    direction is the horizontal part (x, y) of the source after it, made a unit vector. (The
    definition is anemoi-graphs', and so is the axis at the south pole, x, where the shortest
    rotation is not unique.) With the target's unit vectors south, s, and east, e, and its longitude
    l, the rotated x axis is ``s cos l - e sin l`` and the rotated y axis ``s sin l + e cos l``.

    Parameters
    ----------
    src_xyz, dst_xyz : ndarray, shape (N_src, 3), (N_dst, 3)
        Unit vectors.
    dst_latlon : ndarray, shape (N_dst, 2)
        The destinations' latitudes and longitudes, radians.
    edge_index : ndarray, shape (2, M)
        Sources and destinations.

    Returns
    -------
    ndarray, shape (M, 2)
        Unit vectors; (0, 0) where the source lies on, or opposite to, the target.
    """
    sin_lat, cos_lat = dst_xyz[:, 2], np.hypot(dst_xyz[:, 0], dst_xyz[:, 1])
    lon = np.where((cos_lat < AT_POLE) & (sin_lat < 0), np.pi / 2, dst_latlon[:, 1])
    cos_lon, sin_lon = np.cos(lon), np.sin(lon)
    south = np.stack([sin_lat * cos_lon, sin_lat * sin_lon, -cos_lat], axis=1)  # (N_dst, 3)
    east = np.stack([-sin_lon, cos_lon, np.zeros_like(lon)], axis=1)
    x_axis = south * cos_lon[:, None] - east * sin_lon[:, None]
    y_axis = south * sin_lon[:, None] + east * cos_lon[:, None]

    src, dst = edge_index
    step = src_xyz[src] - dst_xyz[dst]  # the axes are normal to the target: its own part is 0
    direction = np.stack([(step * x_axis[dst]).sum(axis=1), (step * y_axis[dst]).sum(axis=1)], axis=1)
    length = np.hypot(direction[:, 0], direction[:, 1])[:, None]
    return np.divide(direction, length, out=np.zeros_like(direction), where=length > 1e-8)


def normalise(values: Floats, norm: Norm, attribute: str, edge_set: str) -> Floats:
    """Scale an attribute as its norm says; no mean is taken away.

    Parameters
    ----------
    values : ndarray, shape (M, D)
        The attribute.
    norm : str
        ``unit-std`` divides by the sample standard deviation over all M * D values, ``unit-max`` by
        their largest, ``none`` leaves them.
    attribute, edge_set : str
        Names for the error.

    Raises
    ------
    UserError
        If the divisor would be 0: a constant attribute, or a largest value that is not positive.
    """
    if norm == "none":
        return values
    if norm == "unit-std":
        divisor = float(values.std(ddof=1)) if values.size > 1 else 0.0
        usable = divisor > NO_SPREAD * float(np.abs(values).max())
    else:
        divisor = float(values.max())
        usable = divisor > 0.0
    if not usable:
        fault = "does not vary" if norm == "unit-std" else "has no positive value"
        key = f"graph.edge_attributes.{attribute}"
        raise UserError(
            f"{attribute} {fault} over the {edge_set} edges, so {norm} would divide by 0", where=key, mend=f"{key}=none"
        )
    return values / divisor
