"""Grids and settings that the graph tests share."""

import numpy as np

from etesian.schema.graph import (
    CutOffEdgesSettings,
    EdgeAttributesSettings,
    EdgesSettings,
    GraphSettings,
    HiddenNodesSettings,
    MultiScaleEdgesSettings,
    NearestEdgesSettings,
    NodesSettings,
)


def settings(resolution=2, cutoff=1.0, k=3, x_hops=1, levels=None, norm="unit-std", overwrite=False):
    return GraphSettings(
        nodes=NodesSettings(hidden=HiddenNodesSettings(resolution=resolution)),
        edges=EdgesSettings(
            data2hidden=CutOffEdgesSettings(cutoff_factor=cutoff),
            hidden2hidden=MultiScaleEdgesSettings(x_hops=x_hops, scale_resolutions=levels),
            hidden2data=NearestEdgesSettings(num_nearest_neighbours=k),
        ),
        edge_attributes=EdgeAttributesSettings(edge_length=norm, edge_dirs=norm),
        overwrite=overwrite,
    )


def rows(latitudes, points):
    """A grid of rows: as many points on each latitude as `points` says."""
    points = np.broadcast_to(points, len(latitudes))
    longitudes = [np.arange(n) * 360.0 / n for n in points]
    return np.repeat(np.asarray(latitudes, float), points), np.concatenate(longitudes)


def regular(step, poles):
    top = 90.0 if poles else 90.0 - step / 2
    return rows(np.arange(top, -90.001, -step), round(360 / step))


def reduced():
    """A grid with shorter rows near the poles."""
    latitudes = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(24)[0]))
    return rows(latitudes, np.maximum(8, np.round(48 * np.cos(np.deg2rad(latitudes)))).astype(int))


def scattered(number=400, seed=0):
    rng = np.random.default_rng(seed)
    return np.rad2deg(np.arcsin(rng.uniform(-1, 1, number))), rng.uniform(0, 360, number)


GRIDS = {
    "regular with poles": regular(10, poles=True),
    "regular without poles": regular(10, poles=False),
    "closed in longitude": tuple(
        v.ravel() for v in np.meshgrid(np.linspace(90, -90, 19), np.linspace(0, 360, 37), indexing="ij")
    ),
    "reduced": reduced(),
    "scattered": scattered(),
}
