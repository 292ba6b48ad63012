"""Graphs that were made elsewhere, such as by anemoi-graphs: checked, and put into the form of those built here."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from math import pi
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.errors import Problem, UserError, did_you_mean
from etesian.graph.area import area_weights
from etesian.graph.attributes import edge_directions, edge_lengths, normalise
from etesian.graph.edge_builders import EARTH_RADIUS_KM
from etesian.graph.levels import edge_label, edges_between, edges_within, level_names
from etesian.graph.nodes import Floats, chord_to_arc, to_xyz
from etesian.schema.graph import ExistingGraphSettings

LOGGER = logging.getLogger(__name__)

TOLERANCE_KM = 0.1
"""How far a data node may lie from the grid point of the dataset with its number."""

NEEDED = (("data", "hidden"), ("hidden", "data"))
"""Edges that every model has."""

_WIDTHS = {"edge_length": 1, "edge_dirs": 2}


def adapt(graph: HeteroData, settings: ExistingGraphSettings, where: str) -> HeteroData:
    """Return the nodes and edges that a model takes of a graph, as :func:`etesian.graph.build.build_graph` gives them.

    Node sets are called ``data`` and ``hidden``; edges are sorted by destination, then source, and their attributes
    with them; numbers of nodes become int64, the rest float32. Missing lengths and directions of edges (divided by
    their standard deviation) and area weights of data nodes are computed from the positions, and that is logged.
    Other node and edge sets and other attributes are left out.

    Parameters
    ----------
    graph : HeteroData
        With ``x`` (N, 2), latitudes and longitudes in radians, at each of the two node sets.
    settings : ExistingGraphSettings
        Section ``graph.existing``.
    where : str
        The file, for messages.

    Raises
    ------
    UserError
        With what is missing or can't be right.
    """
    names = _node_sets(graph, settings, where)
    problems: list[Problem] = []
    adapted, computed = HeteroData(), list[str]()
    for kind, name in names.items():
        problems += _node_problems(graph[name].get("x"), name, where)
        if not problems:
            adapted[kind].x = graph[name].x.float()
    if problems:
        raise UserError.collect(problems)
    xyz = {kind: to_xyz(adapted[kind].x.double().numpy()) for kind in names}
    levels = level_names(1 + len(settings.coarser_nodes))
    needed = {*NEEDED, *((source, target) for source, _, target in edges_between(levels))}
    within = [("hidden", "hidden"), *((source, target) for source, _, target in edges_within(levels))]
    for source, target in (*sorted(needed), *within):
        stored = (names[source], "to", names[target])
        if stored in graph.edge_types and list(graph[stored].keys()):  # to look for a set makes an empty one
            problems += _add_edges(adapted, graph[stored], source, target, xyz, where, computed)
        elif (source, target) in needed:
            problems.append(_no_edges(stored, graph, where))
    problems += _add_area(adapted, graph[names["data"]].get("area_weight"), xyz["data"], where, computed)
    if problems:
        raise UserError.collect(problems)
    if computed:
        LOGGER.info("%s lacks %s: computed from the positions", where, ", ".join(computed))
    adapted.fingerprint = _fingerprint(adapted)
    return adapted


def check_data_nodes(graph: HeteroData, latitudes: Floats, longitudes: Floats, where: str) -> None:
    """Check that the data nodes of a graph are the grid points of a dataset, in their order.

    Parameters
    ----------
    graph : HeteroData
        What :func:`adapt` returns.
    latitudes, longitudes : ndarray, shape (G,)
        The dataset's grid points, degrees.
    where : str
        The file, for messages.

    Raises
    ------
    UserError
        If there are more or fewer, or one lies farther off than :data:`TOLERANCE_KM`.
    """
    mend = "a graph made for this dataset, or graph=multi_scale builds one"
    nodes = graph["data"].num_nodes
    if nodes != len(latitudes):
        what = f"the graph has {nodes:,} data nodes, the dataset {len(latitudes):,} grid points"
        raise UserError(what, where=where, allowed="as many", mend=mend)
    points = to_xyz(np.deg2rad(np.stack([latitudes, longitudes], axis=1)))
    chord = np.linalg.norm(points - to_xyz(graph["data"].x.double().numpy()), axis=1)
    km = chord_to_arc(chord) * EARTH_RADIUS_KM
    if (off := km > TOLERANCE_KM).any():
        first = int(np.flatnonzero(off)[0])
        at = np.rad2deg(graph["data"].x[first].double().numpy())
        raise UserError(
            f"{int(off.sum()):,} of {nodes:,} data nodes are not at the dataset's grid point of the same number: node"
            f" {first} is at latitude {at[0]:.4f}, longitude {at[1]:.4f}, the grid point at {latitudes[first]:.4f},"
            f" {longitudes[first]:.4f}, {km[first]:,.1f} km away",
            where=where,
            allowed=f"at most {TOLERANCE_KM:g} km",
            mend=mend,
        )


def check_edge_sets(graph: HeteroData, wanted: Iterable[tuple[str, str, str]], where: str) -> None:
    """Check that an adapted graph has the edges that a model goes along.

    Raises
    ------
    UserError
        Naming those that are not there.
    """
    missing = sorted(set(wanted) - set(graph.edge_types))
    if missing:
        raise UserError(
            f"the graph has no edges {', '.join(f'{source} to {target}' for source, _, target in missing)}, which the "
            "model goes along",
            where=where,
            mend="a graph with them, or model=transformer, whose processor needs none",
        )


def _node_sets(graph: HeteroData, settings: ExistingGraphSettings, where: str) -> dict[str, str]:
    names = {"data": settings.data_nodes, "hidden": settings.hidden_nodes}
    names |= dict(zip(level_names(1 + len(settings.coarser_nodes))[1:], settings.coarser_nodes, strict=True))
    problems = [
        Problem(
            f"{where} has no node set {name!r}",
            f"graph.existing.{kind if kind in ('data', 'hidden') else 'coarser'}_nodes",
            ", ".join(graph.node_types) or "none: the graph is empty",
            did_you_mean(name, graph.node_types),
        )
        for kind, name in names.items()
        if name not in graph.node_types
    ]
    if settings.data_nodes == settings.hidden_nodes:
        what = f"data and hidden nodes are both {settings.data_nodes!r}"
        problems.append(Problem(what, "graph.existing", "two node sets"))
    elif twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        problems.append(Problem(f"{', '.join(twice)}: a node set is one level only", "graph.existing.coarser_nodes"))
    if problems:
        raise UserError.collect(problems)
    return names


def _node_problems(x: Any, name: str, where: str) -> list[Problem]:
    form = "x of shape (nodes, 2): latitudes and longitudes, radians"
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != 2 or not x.is_floating_point():
        found = f"x of shape {tuple(x.shape)} and {x.dtype}" if isinstance(x, Tensor) else "no x"
        return [Problem(f"the nodes {name!r} have {found}", where, form)]
    if not len(x):
        return [Problem(f"the node set {name!r} is empty", where)]
    if not bool(x.isfinite().all()):
        return [Problem(f"positions of the nodes {name!r} are not finite", where, form)]
    if float(x[:, 0].abs().max()) > pi / 2 + 1e-5 or float(x[:, 1].abs().max()) > 2 * pi + 1e-5:
        what = f"positions of the nodes {name!r} are beyond the sphere: latitudes to {float(x[:, 0].abs().max()):.4g}"
        what += f", longitudes to {float(x[:, 1].abs().max()):.4g}"
        return [Problem(what, where, form, "degrees are turned into radians with torch.deg2rad")]
    return []


def _no_edges(stored: tuple[str, str, str], graph: HeteroData, where: str) -> Problem:
    there = ", ".join(" ".join(kind) for kind in graph.edge_types) or "none"
    return Problem(f"the graph has no edges {' '.join(stored)}", where, f"the edges there are: {there}")


def _add_edges(
    adapted: HeteroData,
    stored: Any,
    source: str,
    target: str,
    xyz: dict[str, Floats],
    where: str,
    computed: list[str],
) -> list[Problem]:
    """Add the edges between two node sets, sorted; return what is wrong with them."""
    label, index = edge_label(source, target), stored.get("edge_index")
    if (problem := _index_problem(index, label, len(xyz[source]), len(xyz[target]), where)) is not None:
        return [problem]
    order = np.lexsort((index[0].numpy(), index[1].numpy()))
    edge_index = index.long()[:, torch.from_numpy(order)]
    kind, problems = (source, "to", target), []
    adapted[kind].edge_index = edge_index
    if target == "data" and (lonely := int((torch.bincount(edge_index[1], minlength=len(xyz["data"])) == 0).sum())):
        what = f"no edge leads to {lonely:,} of {len(xyz['data']):,} data nodes: nothing could be forecast there"
        problems.append(Problem(what, where, "an edge from a hidden node at least"))

    def length() -> Floats:
        return edge_lengths(xyz[source], xyz[target], edge_index.numpy())

    def direction() -> Floats:
        latlon = adapted[target].x.double().numpy()
        return edge_directions(xyz[source], xyz[target], latlon, edge_index.numpy())

    makers: dict[str, Callable[[], Floats]] = {"edge_length": length, "edge_dirs": direction}
    for name, width in _WIDTHS.items():
        values = stored.get(name)
        if values is None:
            made = normalise(makers[name](), "unit-std", name, label)
            adapted[kind][name] = torch.from_numpy(made.astype(np.float32))
            computed.append(f"{name} of {label}")
        elif (problem := _values_problem(values, name, label, (len(order), width), where)) is not None:
            problems.append(problem)
        else:
            adapted[kind][name] = values[torch.from_numpy(order)].float()
    return problems


def _index_problem(index: Any, label: str, num_src: int, num_dst: int, where: str) -> Problem | None:
    form = "edge_index of shape (2, edges), whole numbers"
    if not isinstance(index, Tensor) or index.dim() != 2 or index.shape[0] != 2:
        found = f"edge_index of shape {tuple(index.shape)}" if isinstance(index, Tensor) else "no edge_index"
        return Problem(f"the edges {label} have {found}", where, form)
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        return Problem(f"the edge_index of {label} is of {index.dtype}", where, form)
    if not index.shape[1]:
        return Problem(f"there is no edge {label}", where)
    for row, side, count in ((0, "source", num_src), (1, "target", num_dst)):
        low, high = int(index[row].min()), int(index[row].max())
        if low < 0 or high >= count:
            what = f"the edges {label} name {side} node {low if low < 0 else high}, of {count:,} nodes"
            return Problem(what, where, f"0 to {count - 1}")
    return None


def _values_problem(values: Any, name: str, label: str, shape: tuple[int, int], where: str) -> Problem | None:
    if not isinstance(values, Tensor) or tuple(values.shape) != shape or not values.is_floating_point():
        found = f"shape {tuple(values.shape)} and {values.dtype}" if isinstance(values, Tensor) else "no tensor"
        return Problem(f"{name} of {label} has {found}", where, f"floating-point numbers of shape {shape}")
    if not bool(values.isfinite().all()):
        return Problem(f"{name} of {label} is not finite", where)
    return None


def _add_area(adapted: HeteroData, weights: Any, xyz: Floats, where: str, computed: list[str]) -> list[Problem]:
    """Add the area weights of the data nodes; return what is wrong with them."""
    if weights is None:
        adapted["data"].area_weight = torch.from_numpy(area_weights(xyz).astype(np.float32))
        computed.append("area_weight of data")
        return []
    if isinstance(weights, Tensor) and weights.dim() == 1:
        weights = weights[:, None]
    if (problem := _values_problem(weights, "area_weight", "data", (len(xyz), 1), where)) is not None:
        return [problem]
    if float(weights.min()) < 0 or float(weights.max()) <= 0:
        return [Problem("area_weight of data is negative, or 0 everywhere", where)]
    adapted["data"].area_weight = weights.float()
    return []


def _fingerprint(graph: HeteroData) -> str:
    """Return 32 hexadecimal digits that change with anything in the graph."""
    digest = hashlib.sha256(b"etesian existing graph")
    for kind in (*graph.node_types, *graph.edge_types):
        for name, value in sorted(graph[kind].items()):
            digest.update(f"{kind} {name} {tuple(value.shape)}".encode())
            digest.update(np.ascontiguousarray(value.numpy()).tobytes())
    return digest.hexdigest()[:32]
