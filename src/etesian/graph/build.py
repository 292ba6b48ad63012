"""The whole graph from a dataset's coordinates and the section ``graph`` of the config."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch_geometric.data import HeteroData

from etesian.errors import Problem, UserError
from etesian.graph.area import area_weights
from etesian.graph.attributes import edge_directions, edge_lengths, normalise
from etesian.graph.edge_builders import cutoff_edges, nearest_edges
from etesian.graph.icosphere import build_icosphere
from etesian.graph.nodes import Floats, Ints, check_coordinates, to_latlon, to_xyz
from etesian.schema.graph import EdgeAttributesSettings, GraphSettings

FORMAT = "1"
"""Part of the fingerprint: raise it when the same settings come to give another graph."""

DATA_TO_HIDDEN = ("data", "to", "hidden")
HIDDEN_TO_HIDDEN = ("hidden", "to", "hidden")
HIDDEN_TO_DATA = ("hidden", "to", "data")


def build_graph(latitudes: Floats, longitudes: Floats, settings: GraphSettings) -> HeteroData:
    """Build the nodes, the three sets of edges and their attributes.

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
        destination, then source, with ``edge_length`` (M, 1) and ``edge_dirs`` (M, 2); `fingerprint`.

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
    workers = torch.get_num_threads()
    sphere = build_icosphere(settings.resolution)
    xyz = {"data": to_xyz(data_latlon), "hidden": sphere.xyz}
    latlon = {"data": data_latlon, "hidden": to_latlon(sphere.xyz)}
    for name, values in latlon.items():
        graph[name].x = torch.from_numpy(values.astype(np.float32))

    tree = cKDTree(sphere.xyz)
    edges = settings.edges
    levels = edges.hidden2hidden.scale_resolutions
    index: dict[tuple[str, str, str], Ints] = {
        DATA_TO_HIDDEN: cutoff_edges(xyz["data"], tree, edges.data2hidden.cutoff_factor, workers),
        HIDDEN_TO_HIDDEN: sphere.multi_scale_edges(
            list(range(sphere.resolution + 1)) if levels is None else levels, edges.hidden2hidden.x_hops
        ),
        HIDDEN_TO_DATA: nearest_edges(xyz["data"], tree, edges.hidden2data.num_nearest_neighbours, workers),
    }
    for edge_type, edge_index in index.items():
        source, _, target = edge_type
        graph[edge_type].edge_index = torch.from_numpy(edge_index)
        length = edge_lengths(xyz[source], xyz[target], edge_index)
        direction = edge_directions(xyz[source], xyz[target], latlon[target], edge_index)
        _add_attributes(graph, edge_type, length, direction, settings.edge_attributes)


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
    if problems:
        raise UserError.collect(problems)


def fingerprint(latitudes: Floats, longitudes: Floats, settings: GraphSettings) -> str:
    """Return 32 hexadecimal digits that change with anything the graph is built from."""
    digest = hashlib.sha256()
    digest.update(f"etesian graph {FORMAT} {settings.model_dump_json(exclude={'overwrite', 'existing'})} ".encode())
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
    edge_set = f"{edge_type[0]}2{edge_type[2]}"
    for name, values, norm in (
        ("edge_length", length, norms.edge_length),
        ("edge_dirs", direction, norms.edge_dirs),
    ):
        graph[edge_type][name] = torch.from_numpy(normalise(values, norm, name, edge_set).astype(np.float32))
