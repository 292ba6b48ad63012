"""The icosahedron and its refinements: nested hidden nodes, and the edges of each level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array

from etesian.graph.nodes import Floats, Ints


@dataclass(frozen=True)
class Icosphere:
    """An icosahedron refined a number of times.

    Attributes
    ----------
    xyz : ndarray, shape (10 * 4**resolution + 2, 3)
        Unit vectors. The nodes of a coarse level come first, so level l is the first
        ``10 * 4**l + 2`` of them. Within a level, new nodes are ordered by the lower and
        then the higher number of the two nodes they lie between.
    faces : tuple of ndarray, each (20 * 4**l, 3)
        Triangles of each level, from 0 to the resolution.
    """

    xyz: Floats
    faces: tuple[Ints, ...]

    @property
    def resolution(self) -> int:
        """Number of refinements."""
        return len(self.faces) - 1

    def edges(self, level: int) -> Ints:
        """Return the undirected edges of a level, shape (30 * 4**level, 2), lower node first, sorted."""
        return _unique_edges(self.faces[level])[0]

    def multi_scale_edges(self, levels: list[int], x_hops: int) -> Ints:
        """Connect all nodes that are within `x_hops` steps of each other on one of the levels.

        Parameters
        ----------
        levels : list of int
            Levels, each from 0 to the resolution.
        x_hops : int
            Number of steps along a level's own edges.

        Returns
        -------
        ndarray, shape (2, M)
            Both directions of each edge, each once, no node with itself; sorted by row 1, then row 0.
        """
        num_nodes = len(self.xyz)
        keys = []
        for level in sorted(set(levels)):
            src, dst = _within_hops(self.edges(level), x_hops)
            keys.append(dst * num_nodes + src)
        dst, src = np.divmod(np.unique(np.concatenate(keys)), num_nodes)
        return np.stack([src, dst])


def build_icosphere(resolution: int) -> Icosphere:
    """Refine the icosahedron `resolution` times, each edge halved and its middle lifted to the sphere.

    The icosahedron has its corners at the cyclic permutations of (0, +-1, +-golden ratio), as the
    meshes of the ecosystem do, so that two nodes lie on the 0 meridian near each pole.
    """
    xyz, faces = _icosahedron()
    levels = [faces]
    for _ in range(resolution):
        xyz, faces = _refine(xyz, faces)
        levels.append(faces)
    return Icosphere(xyz, tuple(levels))


def _icosahedron() -> tuple[Floats, Ints]:
    golden = (1.0 + np.sqrt(5.0)) / 2.0
    corners = [(0.0, one, long) for one in (-1.0, 1.0) for long in (-golden, golden)]
    xyz = np.array([np.roll(corner, shift) for shift in range(3) for corner in corners])
    near = np.linalg.norm(xyz[:, None] - xyz[None], axis=2) < 2.5  # edges are 2 long, the next distance is 3.2
    faces = [
        (i, j, k)
        for i in range(12)
        for j in range(i + 1, 12)
        for k in range(j + 1, 12)
        if near[i, j] and near[j, k] and near[i, k]
    ]
    return xyz / np.linalg.norm(xyz, axis=1, keepdims=True), np.array(faces, dtype=np.int64)


def _unique_edges(faces: Ints) -> tuple[Ints, Ints]:
    """Return the edges (E, 2), and for each face the numbers of its edges 01, 12 and 20, (F, 3)."""
    pairs = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    stride = int(faces.max()) + 1
    keys, inverse = np.unique(pairs[:, 0] * stride + pairs[:, 1], return_inverse=True)
    return np.stack(np.divmod(keys, stride), axis=1), inverse.reshape(-1, 3)


def _refine(xyz: Floats, faces: Ints) -> tuple[Floats, Ints]:
    edges, face_edges = _unique_edges(faces)
    middle = xyz[edges[:, 0]] + xyz[edges[:, 1]]
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    a, b, c = faces.T
    ab, bc, ca = (face_edges + len(xyz)).T
    children = np.stack([a, ab, ca, b, bc, ab, c, ca, bc, ab, bc, ca], axis=1)
    return np.concatenate([xyz, middle]), children.reshape(-1, 3)


def _within_hops(edges: Ints, x_hops: int) -> tuple[Ints, Ints]:
    src, dst = np.concatenate([edges, edges[:, ::-1]]).T
    if x_hops == 1:
        return src, dst
    size = int(edges.max()) + 1
    loops = np.arange(size)
    step = coo_array(
        (np.ones(len(src) + size, dtype=bool), (np.append(src, loops), np.append(dst, loops))), shape=(size, size)
    ).tocsr()
    reach: csr_array = step
    for _ in range(x_hops - 1):
        reach = reach @ step
    pairs = reach.tocoo()
    src, dst = pairs.row.astype(np.int64), pairs.col.astype(np.int64)
    return src[src != dst], dst[src != dst]
