"""Features of nodes and edges: what the graph gives, and what is learnt beside it.

The batch and the ensemble are folded into the nodes: `copies` = B E graphs stand side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import repeat
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.graph.edges import Edges
from etesian.graph.tiles import EdgeTiles

_KEPT_SIZES = 4
"""Sizes of batch whose repeated edges are kept: training, validation, an incomplete last one, inference."""

_EDGE_TENSORS = ("src", "dst", "dst_ptr", "src_perm", "src_ptr")


class TrainableFeatures(nn.Module):
    """Learnt features a node or edge, 0 at first.

    Parameters
    ----------
    count : int
        Number of nodes or edges.
    size : int
        Features each; with 0 there is no parameter.
    """

    own: Tensor | None

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.trainable = nn.Parameter(torch.zeros(count, size)) if size else None
        self.register_buffer("own", None, persistent=False)  # which of them this process has; None: all

    def _keep(self, own: Tensor) -> None:
        """Use the learnt features of some nodes or edges alone, by their numbers; the parameter stays whole."""
        self.register_buffer("own", own, persistent=False)

    def forward(self, fixed: Tensor, copies: int) -> Tensor:
        """Join fixed features [count, F] with the learnt ones: [(copies count), F + size]."""
        features = fixed
        if self.trainable is not None:
            learnt = self.trainable if self.own is None else self.trainable.index_select(0, self.own)
            features = torch.cat([fixed, learnt], dim=-1)
        return repeat(features, "n f -> (copies n) f", copies=copies)


class NodeFeatures(TrainableFeatures):
    """Sine and cosine of latitude and longitude, and learnt features.

    Parameters
    ----------
    latlons : Tensor, shape (N, 2)
        Latitude and longitude, radians.
    trainable_size : int
        Learnt features a node.
    """

    coordinates: Tensor

    def __init__(self, latlons: Tensor, trainable_size: int) -> None:
        super().__init__(latlons.shape[0], trainable_size)
        coordinates = torch.cat([latlons.sin(), latlons.cos()], dim=-1).to(torch.get_default_dtype())  # [N, 4]
        self.register_buffer("coordinates", coordinates, persistent=False)
        self.num_nodes = latlons.shape[0]
        self.dim = coordinates.shape[1] + trainable_size

    def keep(self, nodes: Tensor) -> None:
        """Keep some of the nodes alone, by their numbers."""
        self._keep(nodes)
        self.coordinates = self.coordinates[nodes]
        self.num_nodes = nodes.numel()

    def forward(self, copies: int) -> Tensor:  # type: ignore[override]
        """Return the features of the nodes of `copies` graphs, [(copies N), dim]."""
        return super().forward(self.coordinates, copies)

    def join(self, x: Tensor, copies: int) -> Tensor:
        """Put the features of the nodes, in the dtype of x, behind x: [(copies N), F] to [(copies N), F + dim]."""
        return torch.cat([x, self(copies).to(x.dtype)], dim=-1)


def for_products(x: Tensor) -> Tensor:
    """Return x in the dtype of matrix products: what under autocast each linear layer would make of it for itself."""
    if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


class StaticEdges(nn.Module):
    """Edges of one graph, from which those of several side by side are made.

    Parameters
    ----------
    edges : Edges
        The edges.
    """

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        for name in _EDGE_TENSORS:
            self.register_buffer(name, getattr(edges, name), persistent=False)
        self.num_src, self.num_dst, self.most = edges.num_src, edges.num_dst, edges.most
        tiles = [] if edges.tiles is None else edges.tiles.tensors()
        self._tiles = [f"tiles_{number}" for number in range(len(tiles))]
        for name, tensor in zip(self._tiles, tiles, strict=True):
            self.register_buffer(name, tensor, persistent=False)
        self._repeated: dict[int, Edges] = {}

    @property
    def is_tiled(self) -> bool:
        """Whether the edges are in tiles too."""
        return bool(self._tiles)

    def edges(self, copies: int) -> Edges:
        """Return the edges of `copies` graphs; those of the sizes used last are kept.

        Code that is compiled makes them anew: a cache that fills up would have it compiled a second time.
        """
        if torch.compiler.is_compiling():
            return self._repeat(copies)
        if copies not in self._repeated:
            while len(self._repeated) >= _KEPT_SIZES:
                self._repeated.pop(next(iter(self._repeated)))
            self._repeated[copies] = self._repeat(copies)
        return self._repeated[copies]

    def kept(self) -> tuple[Edges, ...]:
        """Return the repeated edges that are kept now, for who reads them at their addresses."""
        return tuple(self._repeated.values())

    def _repeat(self, copies: int) -> Edges:
        tensors = {name: getattr(self, name) for name in _EDGE_TENSORS}
        tiles = EdgeTiles(*(getattr(self, name) for name in self._tiles)) if self._tiles else None
        edges = Edges(**tensors, num_src=self.num_src, num_dst=self.num_dst, tiles=tiles, most=self.most)
        return edges.repeated(copies)

    def _apply(self, fn: Any, recurse: bool = True) -> StaticEdges:
        self._repeated.clear()  # what was kept lies on the device that the module leaves
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_repeated": {}}


class EdgeFeatures(TrainableFeatures):
    """The static edges between two sets of nodes, with length, direction and learnt features.

    Parameters
    ----------
    graph : HeteroData
        The graph.
    src, dst : str
        Names of the sets of nodes.
    trainable_size : int
        Learnt features an edge.
    tiled : bool
        Whether the edges are in tiles too, as the kernel of the graph attention may ask.
    """

    edge_attr: Tensor

    def __init__(self, graph: HeteroData, src: str, dst: str, trainable_size: int, *, tiled: bool = False) -> None:
        store = graph[(src, "to", dst)]
        super().__init__(store.edge_index.shape[1], trainable_size)
        self.static = StaticEdges(Edges.of_graph(graph, src, dst, tiled=tiled))
        edge_attr = torch.cat([store.edge_length, store.edge_dirs], dim=-1).to(torch.get_default_dtype())  # [M, 3]
        self.register_buffer("edge_attr", edge_attr, persistent=False)
        self.dim = edge_attr.shape[1] + trainable_size

    def keep(self, numbers: Tensor, edges: Edges) -> None:
        """Keep some of the edges alone, by their numbers, which lead between other nodes then."""
        self._keep(numbers)
        self.static = StaticEdges(edges)
        self.edge_attr = self.edge_attr[numbers]

    def forward(self, copies: int) -> tuple[Tensor, Edges]:  # type: ignore[override]
        """Return the features [(copies M), dim] and the edges of `copies` graphs side by side."""
        return self.attributes(copies), self.static.edges(copies)

    def attributes(self, copies: int) -> Tensor:
        """Return the features of the edges of `copies` graphs, [(copies M), dim]."""
        return super().forward(self.edge_attr, copies)
