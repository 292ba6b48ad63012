"""Edges between data and hidden nodes: by cut-off radius, and by nearest neighbours."""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial import cKDTree

from etesian.errors import UserError
from etesian.graph.nodes import Floats, Ints, chord_to_arc

EARTH_RADIUS_KM = 6371.0

TOLERANCE = 1e-9
"""Distances (on the unit sphere) that differ by less than this are equal: 6 mm on the Earth."""

CUTOFF_KEY = "graph.edges.data2hidden.cutoff_factor"
NEAREST_KEY = "graph.edges.hidden2data.num_nearest_neighbours"


def reference_distance(tree: cKDTree) -> float:
    """Return the largest distance of a node from its nearest neighbour, straight, on the unit sphere.

    This is what a cut-off factor multiplies in anemoi-graphs too.
    """
    distances, _ = tree.query(tree.data, k=[2])
    return float(distances.max())


def cutoff_edges(
    data_xyz: Floats, hidden: cKDTree, cutoff_factor: float, workers: int, *, key: str = CUTOFF_KEY
) -> Ints:
    """Connect each data node to all hidden nodes within the cut-off radius.

    The radius is `cutoff_factor` times the hidden nodes' reference distance. There is no upper
    limit on the number of edges a node may have.

    Parameters
    ----------
    data_xyz : ndarray, shape (G, 3)
        Unit vectors of the data nodes.
    hidden : cKDTree
        Tree of the hidden nodes' unit vectors.
    cutoff_factor : float
        Radius in units of the reference distance.
    workers : int
        Threads that search the tree.
    key : str
        The config key of the factor. Nodes of two levels of hidden nodes are connected likewise.

    Returns
    -------
    ndarray, shape (2, M)
        Row 0 data nodes, row 1 hidden nodes; sorted by row 1, then row 0.

    Raises
    ------
    UserError
        If a data node has no hidden node within the radius; it names the factor that would do.
    """
    reference = reference_distance(hidden)
    radius = cutoff_factor * reference
    data, node = _within(hidden, data_xyz, radius + TOLERANCE, workers)
    lonely = np.bincount(data, minlength=len(data_xyz)) == 0
    if lonely.any():
        farthest = float(hidden.query(data_xyz[lonely], workers=workers)[0].max())
        enough = math.ceil(farthest / reference * 1000) / 1000
        km = chord_to_arc(np.array([radius])).item() * EARTH_RADIUS_KM
        what = "data nodes have no hidden node" if key == CUTOFF_KEY else "hidden nodes have no node of the next level"
        raise UserError(
            f"{int(lonely.sum())} of {len(data_xyz)} {what} within the cut-off radius of "
            f"{km:.0f} km (factor {cutoff_factor:g})",
            where=key,
            allowed=f"at least {enough:g} for this dataset and these hidden nodes",
            mend=f"{key}={enough:g}",
        )
    return sort_edges(data, node, len(data_xyz))


def nearest_edges(
    data_xyz: Floats, hidden: cKDTree, num_nearest_neighbours: int, workers: int, *, key: str = NEAREST_KEY
) -> Ints:
    """Connect each data node from its nearest hidden nodes; of equally near ones, the lowest numbers.

    Parameters
    ----------
    data_xyz : ndarray, shape (G, 3)
        Unit vectors of the data nodes.
    hidden : cKDTree
        Tree of the hidden nodes' unit vectors.
    num_nearest_neighbours : int
        Edges into each data node, k.
    workers : int
        Threads that search the tree.
    key : str
        The config key of the number.

    Returns
    -------
    ndarray, shape (2, k * G)
        Row 0 hidden nodes, row 1 data nodes; sorted by row 1, then row 0.

    Raises
    ------
    UserError
        If there are fewer than k hidden nodes.
    """
    k = num_nearest_neighbours
    if k > hidden.n:
        raise UserError(
            f"{k} nearest neighbours of {hidden.n} hidden nodes",
            where=key,
            allowed=f"1 to {hidden.n}",
            mend="lower it, or raise graph.nodes.hidden.resolution",
        )
    # One neighbour more shows where the choice of the last one hangs on rounding.
    distances, nearest = hidden.query(data_xyz, k=list(range(1, min(k + 1, hidden.n) + 1)), workers=workers)
    nodes = nearest[:, :k].astype(np.int64)
    if k < hidden.n:
        tied = np.flatnonzero(distances[:, k] - distances[:, k - 1] < TOLERANCE)
        if len(tied):
            nodes[tied] = _lowest_of_tied(hidden, data_xyz[tied], distances[tied, k - 1], k)
    return np.stack([np.sort(nodes, axis=1).ravel(), np.repeat(np.arange(len(data_xyz)), k)])


def sort_edges(src: Ints, dst: Ints, num_src: int) -> Ints:
    """Return the edges (2, M), sorted by destination, then by source."""
    dst, src = np.divmod(np.sort(dst * num_src + src), num_src)
    return np.stack([src, dst])


def _within(tree: cKDTree, points: Floats, radius: float, workers: int) -> tuple[Ints, Ints]:
    """Return all pairs of a point and a tree node less than `radius` apart."""
    rows, nodes = [], []
    todo, k = np.arange(len(points)), min(3, tree.n)
    while len(todo):
        distances, nearest = tree.query(
            points[todo], k=list(range(1, k + 1)), distance_upper_bound=radius, workers=workers
        )
        full = np.isfinite(distances[:, -1]) if k < tree.n else np.zeros(len(todo), dtype=bool)
        found = np.isfinite(distances) & ~full[:, None]
        rows.append(np.repeat(todo, found.sum(axis=1)))
        nodes.append(nearest[found].astype(np.int64))
        todo, k = todo[full], min(3 * k, tree.n)
    return np.concatenate(rows), np.concatenate(nodes)


def _lowest_of_tied(tree: cKDTree, points: Floats, limit: Floats, k: int) -> Ints:
    """Return the k nearest nodes; those as far away as `limit`, the k-th distance, by their number."""
    rows, nodes = _within(tree, points, float(limit.max()) + TOLERANCE, workers=1)
    distances = np.linalg.norm(points[rows] - tree.data[nodes], axis=1)
    inside = distances < limit[rows] + TOLERANCE
    rows, nodes, distances = rows[inside], nodes[inside], distances[inside]
    tied = distances > limit[rows] - TOLERANCE
    order = np.lexsort((nodes, tied, rows))
    rank = np.arange(len(order)) - np.searchsorted(rows[order], rows[order])
    return nodes[order[rank < k]].reshape(-1, k)
