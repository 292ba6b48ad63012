"""What a checkpoint holds of an experiment: enough to build its model again without config, dataset or graph file.

Under the key ``etesian``: ``format``, ``version``, ``config`` (resolved), ``kernels`` (records), ``variables`` (names
and roles), ``statistics`` (of the training dataset), ``graph`` and ``random``. The graph takes 20 bytes an edge (two
32-bit numbers of nodes, length, direction); one learnt feature an edge takes 12 with the optimiser's moments, and
there are 8 by default. So it is put into every checkpoint, and none needs a file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.data.variables import Variables
from etesian.kernels.record import KernelRecord, from_json, to_json

FORMAT = 2
"""Version of the layout."""

STATISTICS = ("mean", "stdev", "maximum", "minimum")


def describe_experiment(
    config: dict[str, Any],
    kernels: Sequence[KernelRecord],
    variables: Variables,
    statistics: Mapping[str, np.ndarray],
    graph: HeteroData,
) -> dict[str, Any]:
    """Return what a checkpoint holds of an experiment, without ``format``, ``version`` and ``random``.

    Parameters
    ----------
    config : dict
        The resolved config.
    kernels : sequence of KernelRecord
        Its kernels.
    variables : Variables
        The dataset's variables by role.
    statistics : mapping
        The dataset's statistics.
    graph : HeteroData
        The graph.
    """
    return {
        "config": config,
        "kernels": to_json(kernels),
        "variables": {name: list(getattr(variables, name)) for name in ("names", "forcing", "diagnostic")},
        "statistics": {name: torch.as_tensor(np.asarray(statistics[name], dtype=np.float64)) for name in STATISTICS},
        "graph": pack_graph(graph),
    }


def kernels_of(content: Mapping[str, Any]) -> list[KernelRecord]:
    """Return the records of the kernels."""
    return from_json(content["kernels"])


def variables_of(content: Mapping[str, Any]) -> Variables:
    """Return the variables by role."""
    return Variables(**{name: tuple(names) for name, names in content["variables"].items()})


def statistics_of(content: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the statistics of the training dataset."""
    return {name: values.numpy() for name, values in content["statistics"].items()}


def graph_of(content: Mapping[str, Any]) -> HeteroData:
    """Return the graph."""
    return unpack_graph(content["graph"])


def pack_graph(graph: HeteroData) -> dict[str, Any]:
    """Return the tensors of a graph in plain dicts, node numbers in 32 bits."""
    return {
        "fingerprint": graph.get("fingerprint"),
        "nodes": {kind: _packed(graph[kind]) for kind in graph.node_types},
        "edges": {" ".join(kind): _packed(graph[kind]) for kind in graph.edge_types},
    }


def unpack_graph(packed: Mapping[str, Any]) -> HeteroData:
    """Return the graph that :func:`pack_graph` took apart."""
    graph = HeteroData()
    for kind, tensors in packed["nodes"].items():
        for name, value in tensors.items():
            graph[kind][name] = value
    for kind, tensors in packed["edges"].items():
        for name, value in tensors.items():
            graph[tuple(kind.split(" "))][name] = value.long() if name == "edge_index" else value
    if packed["fingerprint"] is not None:
        graph.fingerprint = packed["fingerprint"]
    return graph


def _packed(store: Any) -> dict[str, Tensor]:
    tensors = {name: value for name, value in store.items() if isinstance(value, Tensor)}
    return {name: value.to(torch.int32) if name == "edge_index" else value for name, value in tensors.items()}
