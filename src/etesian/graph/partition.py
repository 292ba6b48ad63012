"""A graph in parts, one for each process that shares a model: its nodes, the edges into them, and what is exchanged.

A process has the destination nodes of its part and all edges into them. Of the sources of these edges, those of other
parts are fetched in every layer: the lists of what each process sends and receives depend on the graph alone.

Shapes: N nodes, M edges, P parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.errors import UserError
from etesian.graph.edges import Edges
from etesian.graph.nodes import to_xyz
from etesian.graph.tiles import spatial_order

KEY = "system.hardware.num_gpus_per_model"


def balanced_bounds(work: Tensor, count: int) -> list[int]:
    """Cut nodes that stand in a row into ranges of about equal work, each of one node at least.

    Parameters
    ----------
    work : Tensor, shape (N,)
        Work of each node, whole numbers.
    count : int
        Number of ranges, at most N.

    Returns
    -------
    list of int
        Where each range begins, and N.
    """
    nodes, done = work.numel(), torch.cat([work.new_zeros(1), work.cumsum(0)])
    bounds = torch.searchsorted(done, done[-1] * torch.arange(1, count) // count).tolist()
    for number, bound in enumerate(bounds):  # a node of much work may hold several bounds
        low = (bounds[number - 1] if number else 0) + 1
        bounds[number] = min(max(bound, low), nodes - count + number + 1)
    return [0, *bounds, nodes]


@dataclass(frozen=True)
class NodeParts:
    """Nodes of one kind, in parts.

    Attributes
    ----------
    parts : tuple of Tensor
        Numbers of the nodes of each part, ascending.
    owner : Tensor, shape (N,)
        The part of each node.
    place : Tensor, shape (N,)
        Which node of its part each is.
    """

    parts: tuple[Tensor, ...]
    owner: Tensor
    place: Tensor

    @classmethod
    def cut(cls, order: Tensor, bounds: Sequence[int]) -> NodeParts:
        """Make parts of what stands between the bounds in an order of all nodes."""
        owner, place = torch.empty_like(order), torch.empty_like(order)
        parts = tuple(order[low:high].sort().values for low, high in pairwise(bounds))
        for number, part in enumerate(parts):
            owner[part], place[part] = number, torch.arange(part.numel())
        return cls(parts, owner, place)


@dataclass(frozen=True)
class EdgePart:
    """The edges into the nodes of one part, and how their sources come together.

    Attributes
    ----------
    edge : Tensor, shape (M_part,)
        Numbers of the edges in the whole graph.
    edges : Edges
        The same between `source` and the destination nodes of the part, as these stand there.
    source : Tensor, shape (N_src_part,)
        The sources, by their number in the whole graph: those of the first part first.
    send : Tensor
        Which sources of this part are sent, as they stand in it: to the first part, then to the second, and so on.
    sent, received : tuple of int, P each
        How many nodes go to, and come from, each part; its own among them.
    """

    edge: Tensor
    edges: Edges
    source: Tensor
    send: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """Data and hidden nodes of a graph in as many parts.

    Data nodes are cut where they stand, so a part is a range of the grid. Hidden nodes are cut in the order of the data
    nodes nearest to them, so that a part has hidden nodes near its data nodes, however either are numbered.
    """

    data: NodeParts
    hidden: NodeParts

    @classmethod
    def of_graph(cls, graph: HeteroData, count: int) -> Partition:
        """Cut a graph into parts of about equal work: nodes and edges into them together.

        Raises
        ------
        UserError
            If there are fewer data or hidden nodes than parts.
        """
        sizes = {name: graph[name].num_nodes for name in ("data", "hidden")}
        if short := [f"{size} {name} nodes" for name, size in sizes.items() if size < count]:
            what = f"{KEY}={count}, but the graph has {' and '.join(short)}"
            raise UserError(what, where=KEY, allowed=f"at most {min(sizes.values())}")
        work = {name: torch.ones(size, dtype=torch.int64) for name, size in sizes.items()}
        for edge_type in graph.edge_types:
            destination = edge_type[2]
            work[destination] += torch.bincount(graph[edge_type].edge_index[1].long(), minlength=sizes[destination])
        as_numbered, near_data = torch.arange(sizes["data"]), _by_nearest_data_node(graph)
        return cls(
            NodeParts.cut(as_numbered, balanced_bounds(work["data"], count)),
            NodeParts.cut(near_data, balanced_bounds(work["hidden"][near_data], count)),
        )

    def of(self, kind: str) -> NodeParts:
        """Return the nodes ``data`` or ``hidden``."""
        return {"data": self.data, "hidden": self.hidden}[kind]

    @property
    def count(self) -> int:
        """Number of parts, P."""
        return len(self.data.parts)

    def points(self, part: int) -> slice:
        """Return the range of the grid that is a part's data nodes."""
        nodes = self.data.parts[part]
        return slice(int(nodes[0]), int(nodes[-1]) + 1)

    def edges(self, graph: HeteroData, src: str, dst: str, part: int, *, tiled: bool) -> EdgePart:
        """Return the edges of a part between two kinds of nodes, in tiles too where `tiled` asks for it."""
        index = graph[src, "to", dst].edge_index.long()
        sources, own = self.of(src), self.of(dst).parts[part]
        into = self.of(dst).owner[index[1]]
        # A number for each source that a part needs: the part, where the source is, and which it is.
        needs = (into * self.count + sources.owner[index[0]]) * sources.owner.numel() + index[0]
        needed = needs.unique()
        node, who = needed % sources.owner.numel(), needed // sources.owner.numel()
        to, at = who // self.count, who % self.count
        mine, sent = to == part, at == part
        edge = (into == part).nonzero().flatten()
        ends = torch.stack([torch.searchsorted(needed[mine], needs[edge]), self.of(dst).place[index[1, edge]]])
        edges = Edges.from_sorted(ends, int(mine.sum()), own.numel())
        if tiled:
            latlons = graph[src].x[node[mine]], graph[dst].x[own]
            edges = edges.with_tiles(*map(spatial_order, latlons))
        return EdgePart(
            edge,
            edges,
            node[mine],
            sources.place[node[sent]],
            tuple(torch.bincount(to[sent], minlength=self.count).tolist()),
            tuple(torch.bincount(at[mine], minlength=self.count).tolist()),
        )


def _by_nearest_data_node(graph: HeteroData) -> Tensor:
    """Return the numbers of the hidden nodes in the order of the data nodes nearest to them."""
    data, hidden = (to_xyz(graph[name].x.double().numpy()) for name in ("data", "hidden"))
    nearest = torch.from_numpy(cKDTree(data).query(hidden)[1])
    return torch.argsort(nearest, stable=True)
