"""The shapes on which an experiment calls its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from etesian.graph.edges import Edges
from etesian.schema.model import ModelSettings

DISTANCE_FEATURES = 3
"""Length and direction of an edge."""

EDGES_A_NODE = 8
"""Edges into each node of a graph that is made up."""


@dataclass(frozen=True)
class Shape:
    """Nodes that a slot is called on.

    Attributes
    ----------
    name : str
        For the tables: ``data nodes``.
    rows : int
        Nodes, batch and ensemble folded in; of graph attention the destination nodes.
    block : ComponentSettings
        Of the component that mostly works on them: heads and width of the MLP.
    calls : int
        How often a step of the model calls the slot on them: what they weigh when kernels are compared.
    edges : Edges, optional
        Of graph attention.
    edge_features : int
        Features of each edge.
    copies : int
        Batch times ensemble: attention among nodes does not look beyond one of them.
    """

    name: str
    rows: int
    block: Any
    calls: int = 1
    edges: Edges | None = None
    edge_features: int = 0
    copies: int = 1


@dataclass(frozen=True)
class Sizes:
    """What the shapes of an experiment are made from.

    Attributes
    ----------
    data, hidden : int
        Nodes of the graph.
    copies : int
        Batch times ensemble.
    edges : mapping
        ``data2hidden``, ``hidden2hidden``, ``hidden2data`` to the edges of one graph; empty where no graph was read.
    """

    data: int
    hidden: int
    copies: int
    edges: Mapping[str, Edges]


def shapes_of_experiment(slot: str, settings: ModelSettings, sizes: Sizes) -> list[Shape]:
    """Return the shapes on which the model of an experiment calls a slot."""
    layers = settings.processor.num_layers
    if slot == "GraphAttention":
        return _graph_shapes(settings, sizes)
    hidden = partial(Shape, "hidden nodes", sizes.copies * sizes.hidden, settings.processor, copies=sizes.copies)
    if slot == "Attention":
        return [hidden(layers)]
    linears = 5 if settings.uses("processor", "GraphAttention") else 4  # query, key, value, projection, own
    data_calls, hidden_calls = {
        "LayerNorm": (4, 3 + 2 * layers),  # norms of source, destination, MLP and output
        "Linear": (5, 5 + linears * layers),
    }.get(slot, (1, 1 + layers))
    data = Shape("data nodes", sizes.copies * sizes.data, settings.decoder, data_calls, copies=sizes.copies)
    return [data, hidden(hidden_calls)]


def shapes_of_rows(slot: str, settings: ModelSettings, rows: list[int]) -> list[Shape]:
    """Return shapes of that many rows; graph attention gets edges that are made up."""
    if slot != "GraphAttention":
        return [Shape("rows", count, settings.processor) for count in rows]
    features = DISTANCE_FEATURES + settings.edge_trainable_parameters.data2hidden
    name = f"nodes, {EDGES_A_NODE} made-up edges into each"
    return [
        Shape(name, count, settings.processor, edges=made_up_edges(count), edge_features=features) for count in rows
    ]


def made_up_edges(nodes: int) -> Edges:
    """Return edges into each node from nodes with numbers near its own, as in a mesh."""
    generator = torch.Generator().manual_seed(0)
    dst = torch.arange(nodes).repeat_interleave(EDGES_A_NODE)
    src = (dst + torch.randint(-200, 201, dst.shape, generator=generator)).clamp(0, nodes - 1)
    return Edges.from_sorted(torch.stack([src, dst]), nodes, nodes).with_tiles()


def _graph_shapes(settings: ModelSettings, sizes: Sizes) -> list[Shape]:
    learnt = settings.edge_trainable_parameters.model_dump()
    components = {"data2hidden": "encoder", "hidden2hidden": "processor", "hidden2data": "decoder"}
    shapes = []
    for name, component in components.items():
        edges = sizes.edges.get(name)
        if edges is None or not settings.uses(component, "GraphAttention"):
            continue
        repeated = edges.repeated(sizes.copies)
        calls = settings.processor.num_layers if component == "processor" else 1
        block, features = getattr(settings, component), DISTANCE_FEATURES + learnt.get(name, 0)
        shapes.append(
            Shape(f"nodes of {name}", repeated.num_dst, block, calls, repeated, features, copies=sizes.copies)
        )
    return shapes
