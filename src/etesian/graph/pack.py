"""A graph as plain tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData


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
