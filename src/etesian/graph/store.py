"""Graphs on disk: kept with a fingerprint of what they were built from, rebuilt when it differs."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.storage import BaseStorage, EdgeStorage, NodeStorage

from etesian.errors import UserError, shell_word
from etesian.files import save_torch
from etesian.graph.attributes import edge_lengths
from etesian.graph.build import build_graph
from etesian.graph.build import fingerprint as graph_fingerprint
from etesian.graph.edge_builders import EARTH_RADIUS_KM
from etesian.graph.existing import adapt, check_data_nodes
from etesian.graph.files import check_graph_file
from etesian.graph.levels import edge_label
from etesian.graph.nodes import Floats, check_coordinates, to_xyz
from etesian.schema.graph import GraphSettings

LOGGER = logging.getLogger(__name__)

_MAGIC = b"PK\x03\x04"

PATH_KEY = "system.input.graph"


def load_or_build(
    latitudes: Floats, longitudes: Floats, settings: GraphSettings, path: Path | None, cache_dir: Path
) -> HeteroData:
    """Return the graph of a dataset: the stored one where it fits, else a new one, which is stored.

    Parameters
    ----------
    latitudes, longitudes : ndarray, shape (G,)
        The dataset's grid points, degrees.
    settings : GraphSettings
        Section ``graph`` of the config; `overwrite` rebuilds in any case.
    path : Path or None
        The graph's file; None keeps it under `cache_dir`, named by its fingerprint. With ``settings.existing`` it is
        read as it is, and never written.
    cache_dir : Path
        The user's cache folder.

    Raises
    ------
    UserError
        If the graph can't be built or written, or if `path` is not a ``.pt`` file or holds a graph
        that was made by something else (it is not replaced).
    """
    if path is not None:
        check_path(path)
    latitudes, longitudes = check_coordinates(latitudes, longitudes)
    if settings.existing is not None:
        assert path is not None
        graph = adapt(load_graph(path), settings.existing, str(path))
        check_data_nodes(graph, latitudes, longitudes, str(path))
        return graph
    wanted = graph_fingerprint(latitudes, longitudes, settings)
    target = graph_path(cache_dir, wanted) if path is None else path
    if not settings.overwrite:
        stored = _stored_graph(target, wanted, replaceable=path is None)
        if stored is not None:
            return stored
    graph = build_graph(latitudes, longitudes, settings)
    save_graph(graph, target)
    return graph


def graph_path(cache_dir: Path, fingerprint: str) -> Path:
    """Return where the cache keeps the graph of a fingerprint."""
    return cache_dir / "graphs" / f"{fingerprint}.pt"


def save_graph(graph: HeteroData, path: Path) -> None:
    """Write a graph so that `path` holds either the old file or the whole new one.

    Raises
    ------
    UserError
        If `path` does not end in ``.pt``, or can't be written.
    """
    check_path(path)
    try:
        save_torch(path, graph)
    except (OSError, RuntimeError) as cause:  # torch wraps what the file system says
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())
        raise UserError(f"the graph can't be written: {reason}", where=str(path), mend=f"{PATH_KEY}=PATH.pt") from cause


def load_graph(path: Path) -> HeteroData:
    """Read a graph; nothing in the file is run.

    Raises
    ------
    UserError
        If there is no such file, or if it can't be read as a graph.
    """
    check_graph_file(path)
    try:
        with torch.serialization.safe_globals([BaseStorage, NodeStorage, EdgeStorage, HeteroData]):
            graph = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:  # a broken file fails in the unzipper, the unpickler or the storage, each in its own way
        reason = str(cause).strip().splitlines() or [type(cause).__name__]
        raise UserError(f"the file can't be read as a graph: {reason[0]}", where=str(path)) from cause
    if not isinstance(graph, HeteroData):
        raise UserError(f"the file holds a {type(graph).__name__}, no graph", where=str(path))
    return graph


def describe(graph: HeteroData) -> dict[str, Any]:
    """Summarise a graph in plain numbers.

    Returns
    -------
    dict
        ``fingerprint`` (None for a graph without one); ``nodes``: by type, their ``count``; ``area_weight``:
        by node type, ``min``, ``mean`` and ``max``; ``edges``: by ``source2target``, their ``count``,
        ``source_degree``, ``target_degree`` and ``length_km`` (each ``min``, ``mean``, ``max``), and
        ``sources_without_edge`` and ``targets_without_edge``, the numbers of such nodes.
    """
    xyz = {kind: to_xyz(graph[kind].x.double().numpy()) for kind in graph.node_types}
    edges: dict[str, dict[str, Any]] = {}
    for source, relation, target in graph.edge_types:
        edge_index = graph[source, relation, target].edge_index.numpy().astype(np.int64)
        leaving = np.bincount(edge_index[0], minlength=len(xyz[source]))
        entering = np.bincount(edge_index[1], minlength=len(xyz[target]))
        length = edge_lengths(xyz[source], xyz[target], edge_index)
        edges[edge_label(source, target)] = {
            "count": edge_index.shape[1],
            "source_degree": _spread(leaving),
            "target_degree": _spread(entering),
            "length_km": _spread(length * EARTH_RADIUS_KM),
            "sources_without_edge": np.flatnonzero(leaving == 0).tolist(),
            "targets_without_edge": np.flatnonzero(entering == 0).tolist(),
        }
    return {
        "fingerprint": graph.get("fingerprint"),
        "nodes": {kind: {"count": len(xyz[kind])} for kind in graph.node_types},
        "area_weight": {
            kind: _spread(graph[kind].area_weight.numpy()) for kind in graph.node_types if "area_weight" in graph[kind]
        },
        "edges": edges,
    }


def _stored_graph(path: Path, wanted: str, replaceable: bool) -> HeteroData | None:
    """Return the stored graph if it is the wanted one, None if it is to be built."""
    if not path.exists():
        return None
    try:
        graph = load_graph(path)
        found, fault = graph.get("fingerprint"), "it was built from another grid or another section graph"
    except UserError as broken:
        found, fault = None, broken.problems[0].what
    if found == wanted:
        return graph
    if found is None and not replaceable and not _is_torn(path):
        raise UserError(
            f"{path} holds something that was not built here; it is neither used nor replaced",
            where=PATH_KEY,
            allowed="a new file, a graph built here, or null",
            mend="graph.overwrite=true replaces it",
        )
    LOGGER.info("%s is rebuilt: %s", path, fault)
    return None


def _is_torn(path: Path) -> bool:
    """Tell whether a file is empty, or begins as what `torch.save` writes and is damaged farther on."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if head != _MAGIC[: len(head)]:
            return False
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except (OSError, zipfile.BadZipFile):
        return True


def check_path(path: Path) -> None:
    """Check the name of a graph's file, and that no folder has it.

    Raises
    ------
    UserError
        If it does not end in ``.pt``, or is a folder.
    """
    if path.suffix != ".pt":
        raise UserError(
            f"a graph's file is named *.pt, not {path.name!r}", where=PATH_KEY, mend=shell_word(f"{PATH_KEY}={path}.pt")
        )
    if path.is_dir():
        raise UserError(
            f"{path} is a folder, not a graph's file", where=PATH_KEY, mend=shell_word(f"{PATH_KEY}={path}/graph.pt")
        )


def _spread(values: np.ndarray) -> dict[str, float]:
    if not values.size:
        return {"min": 0, "mean": 0.0, "max": 0}
    return {"min": values.min().item(), "mean": float(values.mean()), "max": values.max().item()}
