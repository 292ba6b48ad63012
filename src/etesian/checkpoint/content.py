"""What a checkpoint holds of an experiment: enough to build its model again without config, dataset or graph file.

Under the key ``etesian``: ``format``, ``version``, ``config`` (resolved), ``kernels`` (records), ``variables`` (names
and roles), ``statistics`` (of the training dataset), ``dataset`` (what trained it) with ``coordinates`` (latitudes and
longitudes, degrees), ``run`` (its name and environment), ``graph`` and ``random``. The graph takes 20 bytes an edge
(two 32-bit numbers of nodes, length, direction); one learnt feature an edge takes 12 with the optimiser's moments, and
there are 8 by default. So it is put into every checkpoint, and none needs a file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from etesian.data.variables import Variables
from etesian.graph.pack import pack_graph, unpack_graph
from etesian.kernels.record import KernelRecord, from_json, to_json

FORMAT = 3
"""Version of the layout."""

STATISTICS = ("mean", "stdev", "maximum", "minimum")


def describe_experiment(
    config: dict[str, Any],
    kernels: Sequence[KernelRecord],
    variables: Variables,
    statistics: Mapping[str, np.ndarray],
    graph: HeteroData,
    *,
    dataset: Mapping[str, Any],
    coordinates: Mapping[str, torch.Tensor],
    run: Mapping[str, Any],
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
    dataset : mapping
        What :func:`etesian.data.description.describe_dataset` returns of the training dataset.
    coordinates : mapping
        Its ``latitudes`` and ``longitudes``, (G,) each, degrees.
    run : mapping
        ``id`` and ``environment`` of the run.
    """
    return {
        "config": config,
        "kernels": to_json(kernels),
        "variables": {name: list(getattr(variables, name)) for name in ("names", "forcing", "diagnostic")},
        "statistics": {name: torch.as_tensor(np.asarray(statistics[name], dtype=np.float64)) for name in STATISTICS},
        "dataset": dict(dataset),
        "coordinates": dict(coordinates),
        "run": dict(run),
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
