"""The whole graph from a dataset's coordinates and the section ``graph`` of the config."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch_geometric.data import HeteroData

from etesian.errors import Problem, UserError
from etesian.graph.area import area_weights
from etesian.graph.attributes import edge_directions, edge_lengths, normalise
from etesian.graph.edge_builders import cutoff_edges, nearest_edges
from etesian.graph.icosphere import Icosphere, build_icosphere
from etesian.graph.levels import edge_label, level_names
from etesian.graph.nodes import Floats, Ints, check_coordinates, to_latlon, to_xyz
from etesian.schema.graph import EdgeAttributesSettings, EdgesSettings, GraphSettings

FORMAT = "1"
"""Part of the fingerprint: raise it when the same settings come to give another graph."""

DATA_TO_HIDDEN = ("data", "to", "hidden")
HIDDEN_TO_HIDDEN = ("hidden", "to", "hidden")
HIDDEN_TO_DATA = ("hidden", "to", "data")


def build_graph(latitudes: Floats, longitudes: Floats, settings: GraphSettings) -> HeteroData:
    """Build the nodes, the sets of edges and their attributes.

    Parameters
    ----------
    latitudes, longitudes : ndarray, shape (G,)
        The dataset's grid points, degrees; any grid, repeated points included.
    settings : GraphSettings
        Section ``graph`` of the config.

    Returns
    -------
    HeteroData
        Nodes ``data`` (G) and ``hidden`` with ``x`` (N, 2) latitude and longitude in radians,
        ``data`` also with ``area_weight`` (G, 1), largest 1; edges ``edge_index`` (2, M), sorted by
        destination, then source, with ``edge_length`` (M, 1) and ``edge_dirs`` (M, 2); `fingerprint`. Coarser levels:
        see :mod:`etesian.graph.levels`.

    Raises
    ------
    UserError
        If coordinates are invalid, settings don't fit each other, or a data node stays unconnected.
    """
    latitudes, longitudes = check_coordinates(latitudes, longitudes)
    check_settings(settings)
    data_latlon = np.deg2rad(np.stack([latitudes, longitudes], axis=1))
    graph = HeteroData()
    graph.fingerprint = fingerprint(latitudes, longitudes, settings)
    add_edges(graph, data_latlon, settings)
    graph["data"].area_weight = torch.from_numpy(area_weights(to_xyz(data_latlon)).astype(np.float32))
    return graph


def add_edges(graph: HeteroData, data_latlon: Floats, settings: GraphSettings) -> None:
    """Add the nodes, the edges and the edge attributes to a graph.

    Parameters
    ----------
    graph : HeteroData
        Changed in place.
    data_latlon : ndarray, shape (G, 2)
        Latitudes and longitudes, radians.
    settings : GraphSettings
        Checked settings.
    """
    assert settings.nodes is not None
    resolutions = settings.nodes.hidden.resolutions
    spheres = dict(zip(level_names(len(resolutions)), map(build_icosphere, resolutions), strict=True))
    xyz = {"data": to_xyz(data_latlon)} | {name: sphere.xyz for name, sphere in spheres.items()}
    latlon = {"data": data_latlon} | {name: to_latlon(sphere.xyz) for name, sphere in spheres.items()}
    for name, values in latlon.items():
        graph[name].x = torch.from_numpy(values.astype(np.float32))

    index = _edges(xyz, spheres, settings.edges)
    for edge_type, edge_index in index.items():
        source, _, target = edge_type
        graph[edge_type].edge_index = torch.from_numpy(edge_index)
        length = edge_lengths(xyz[source], xyz[target], edge_index)
        direction = edge_directions(xyz[source], xyz[target], latlon[target], edge_index)
        _add_attributes(graph, edge_type, length, direction, settings.edge_attributes)


def _edges(
    xyz: dict[str, Floats], spheres: dict[str, Icosphere], edges: EdgesSettings
) -> dict[tuple[str, str, str], Ints]:
    """Return all sets of edges."""
    workers = torch.get_num_threads()
    trees = {name: cKDTree(sphere.xyz) for name, sphere in spheres.items()}
    near, away = edges.data2hidden.cutoff_factor, edges.hidden2data.num_nearest_neighbours
    index = {
        DATA_TO_HIDDEN: cutoff_edges(xyz["data"], trees["hidden"], near, workers),
        HIDDEN_TO_HIDDEN: _within_level(spheres["hidden"], edges),
        HIDDEN_TO_DATA: nearest_edges(xyz["data"], trees["hidden"], away, workers),
    }
    for fine, coarse in pairwise(spheres):
        near, away = edges.fine2coarse.cutoff_factor, edges.coarse2fine.num_nearest_neighbours
        down, up = (
            f"graph.edges.{name}" for name in ("fine2coarse.cutoff_factor", "coarse2fine.num_nearest_neighbours")
        )
        index[coarse, "to", coarse] = _within_level(spheres[coarse], edges)
        index[fine, "to", coarse] = cutoff_edges(xyz[fine], trees[coarse], near, workers, key=down)
        index[coarse, "to", fine] = nearest_edges(xyz[fine], trees[coarse], away, workers, key=up)
    return index


def _within_level(sphere: Icosphere, edges: EdgesSettings) -> Ints:
    """Return the edges among the nodes of a level: those of its own refinements that are asked for."""
    wanted, own = edges.hidden2hidden.scale_resolutions, range(sphere.resolution + 1)
    return sphere.multi_scale_edges([n for n in own if wanted is None or n in wanted], edges.hidden2hidden.x_hops)


def check_settings(settings: GraphSettings) -> None:
    """Check what depends on more than one key.

    Raises
    ------
    UserError
        If the edges ask for levels that the hidden nodes don't have.
    """
    levels, resolution = settings.edges.hidden2hidden.scale_resolutions, settings.resolution
    key = "graph.edges.hidden2hidden.scale_resolutions"
    problems = []
    if levels is not None and not levels:
        problems.append(Problem("no level at all would leave the hidden nodes without edges", key, mend=f"{key}=null"))
    unknown = sorted({level for level in levels or [] if not 0 <= level <= resolution})
    if unknown:
        what = f"levels {unknown} are not among those of the hidden nodes, refined {resolution} times"
        problems.append(Problem(what, key, f"0 to {resolution}", f"{key}=null takes all"))
    assert settings.nodes is not None
    for coarse in settings.nodes.hidden.resolutions[1:]:
        if levels and not unknown and min(levels) > coarse:
            what = f"no level of {levels} is among those of the hidden nodes that are refined {coarse} times"
            problems.append(Problem(what, key, f"one at most {coarse}", f"{key}=null takes all"))
    if problems:
        raise UserError.collect(problems)


def fingerprint(latitudes: Floats, longitudes: Floats, settings: GraphSettings) -> str:
    """Return 32 hexadecimal digits that change with anything the graph is built from."""
    digest = hashlib.sha256()
    left_out: dict[str, Any] = {"overwrite": True, "existing": True}
    if settings.num_levels == 1:  # graphs of one level keep the digits that they had before there were more
        left_out |= {"nodes": {"hidden": {"levels", "coarsening"}}, "edges": {"fine2coarse", "coarse2fine"}}
    digest.update(f"etesian graph {FORMAT} {settings.model_dump_json(exclude=left_out)} ".encode())
    for values in (latitudes, longitudes):
        digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return digest.hexdigest()[:32]


def _add_attributes(
    graph: HeteroData,
    edge_type: tuple[str, str, str],
    length: Floats,
    direction: Floats,
    norms: EdgeAttributesSettings,
) -> None:
    edge_set = edge_label(edge_type[0], edge_type[2])
    for name, values, norm in (
        ("edge_length", length, norms.edge_length),
        ("edge_dirs", direction, norms.edge_dirs),
    ):
        graph[edge_type][name] = torch.from_numpy(normalise(values, norm, name, edge_set).astype(np.float32))
