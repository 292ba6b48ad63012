"""Levels of hidden nodes: the names of their nodes and edges in a graph.

The finest level is ``hidden``, which encoder and decoder work with; coarser ones are ``hidden_2``, ``hidden_3``.
"""

from __future__ import annotations

from itertools import pairwise

from torch_geometric.data import HeteroData

EdgeType = tuple[str, str, str]


def level_names(count: int) -> list[str]:
    """Return the names of so many levels, the finest first."""
    return ["hidden", *(f"hidden_{number}" for number in range(2, count + 1))]


def levels_of(graph: HeteroData) -> list[str]:
    """Return the names of the levels that a graph has, the finest first."""
    return level_names(sum(name.startswith("hidden") for name in graph.node_types))


def edge_label(source: str, target: str) -> str:
    """Return the name of a set of edges for people: ``data2hidden``, ``hidden_2-hidden``."""
    return f"{source}2{target}" if source.isalpha() and target.isalpha() else f"{source}-{target}"


def edges_within(names: list[str]) -> list[EdgeType]:
    """Return the edges among the nodes of each level, ``hidden`` left out, whose edges every graph has."""
    return [(name, "to", name) for name in names[1:]]


def edges_between(names: list[str]) -> list[EdgeType]:
    """Return the edges from each level to the next coarser one and back."""
    return [edge for fine, coarse in pairwise(names) for edge in ((fine, "to", coarse), (coarse, "to", fine))]
