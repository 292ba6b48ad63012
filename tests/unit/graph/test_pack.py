"""Graphs as plain tensors."""

from __future__ import annotations

import torch
from small_model import make_graph

from etesian.graph.pack import pack_graph, unpack_graph


def test_a_graph_is_the_same_after_packing() -> None:
    graph = make_graph()
    graph.fingerprint = "abc"
    packed = pack_graph(graph)
    assert packed["edges"]["data to hidden"]["edge_index"].dtype == torch.int32
    again = unpack_graph(packed)
    assert again.fingerprint == "abc"
    assert (again.node_types, again.edge_types) == (graph.node_types, graph.edge_types)
    for kind in [*graph.node_types, *graph.edge_types]:
        for name, value in graph[kind].items():
            assert torch.equal(again[kind][name], value), (kind, name)
            assert again[kind][name].dtype == value.dtype
    assert "fingerprint" not in unpack_graph(pack_graph(make_graph()))
