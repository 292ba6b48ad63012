"""Edges sorted by destination, with their by-source view: what the graph-attention kernels read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.graph.tiles import EdgeTiles, make_tiles, spatial_order


@dataclass(frozen=True)
class Edges:
    """Static edges from ``num_src`` source nodes to ``num_dst`` destination nodes.

    Attributes
    ----------
    src, dst : Tensor, shape (M,), int64
        Source and destination of each edge; `dst` does not decrease.
    dst_ptr : Tensor, shape (num_dst + 1,), int64
        Edges ``dst_ptr[i]`` to ``dst_ptr[i + 1] - 1`` lead into destination node i.
    src_perm : Tensor, shape (M,), int64
        The edges in order of their source; ties keep the order by destination.
    src_ptr : Tensor, shape (num_src + 1,), int64
        Edges ``src_perm[src_ptr[j] : src_ptr[j + 1]]`` leave source node j.
    num_src, num_dst : int
        Number of nodes on each side.
    tiles : EdgeTiles or None
        The edges in tiles, where :meth:`with_tiles` made them.
    most : int
        Edges into a node at most, likewise.
    """

    src: Tensor
    dst: Tensor
    dst_ptr: Tensor
    src_perm: Tensor
    src_ptr: Tensor
    num_src: int
    num_dst: int
    tiles: EdgeTiles | None = None
    most: int = 0

    @property
    def num_edges(self) -> int:
        """Number of edges, M."""
        return self.src.numel()

    @classmethod
    def from_sorted(cls, edge_index: Tensor, num_src: int, num_dst: int) -> Edges:
        """Build the views of edges that are sorted by destination already.

        Parameters
        ----------
        edge_index : Tensor, shape (2, M)
            Row 0 holds the sources, row 1 the destinations.
        num_src, num_dst : int
            Number of nodes on each side.

        Raises
        ------
        ValueError
            If the edges are not sorted by destination, or name a node that is not there.
        """
        src, dst = edge_index[0].long().contiguous(), edge_index[1].long().contiguous()
        if src.numel():
            if bool((dst[1:] < dst[:-1]).any()):
                raise ValueError("edges are not sorted by destination")
            for name, index, count in (("source", src, num_src), ("destination", dst, num_dst)):
                low, high = int(index.min()), int(index.max())
                if low < 0 or high >= count:
                    raise ValueError(f"edges name {name} node {low if low < 0 else high}, of {count} nodes")
        src_perm = torch.argsort(src, stable=True)
        return cls(src, dst, _pointers(dst, num_dst), src_perm, _pointers(src, num_src), num_src, num_dst)

    @classmethod
    def of_graph(cls, graph: HeteroData, src: str, dst: str, *, tiled: bool) -> Edges:
        """Return the edges between two sets of nodes of a graph, in tiles too where `tiled` asks for it."""
        index = graph[src, "to", dst].edge_index
        edges = cls.from_sorted(index, graph[src].num_nodes, graph[dst].num_nodes)
        return edges.with_tiles(spatial_order(graph[src].x), spatial_order(graph[dst].x)) if tiled else edges

    def with_tiles(self, src_order: Tensor | None = None, dst_order: Tensor | None = None) -> Edges:
        """Return the same edges in tiles as well, for the kernels that want them.

        Parameters
        ----------
        src_order, dst_order : Tensor, optional
            All nodes of a side in an order that keeps near ones together, as
            :func:`etesian.graph.tiles.spatial_order` gives it; else as they are numbered. It is a question of speed.
        """
        sizes = (self.num_src, self.num_dst)
        tiles = make_tiles(self.src.cpu(), self.dst.cpu(), *sizes, src_order, dst_order).to(self.src.device)
        return replace(self, tiles=tiles, most=int(self.dst_ptr.diff().max()) if self.num_dst else 0)

    def repeated(self, copies: int) -> Edges:
        """Return `copies` graphs side by side, as a batch folded into the nodes needs them.

        Node i of copy b has the number ``b * num_nodes + i``.
        """
        if copies == 1:
            return self
        copy = torch.arange(copies, device=self.src.device)[:, None]

        def shift(index: Tensor, step: int) -> Tensor:
            return (index[None, :] + copy * step).flatten()

        def shift_pointers(pointers: Tensor) -> Tensor:
            return torch.cat([shift(pointers[:-1], self.num_edges), pointers.new_full((1,), copies * self.num_edges)])

        return Edges(
            src=shift(self.src, self.num_src),
            dst=shift(self.dst, self.num_dst),
            dst_ptr=shift_pointers(self.dst_ptr),
            src_perm=shift(self.src_perm, self.num_edges),
            src_ptr=shift_pointers(self.src_ptr),
            num_src=copies * self.num_src,
            num_dst=copies * self.num_dst,
            tiles=None
            if self.tiles is None
            else self.tiles.repeated(copies, self.num_src, self.num_dst, self.num_edges),
            most=self.most,
        )

    def to(self, device: torch.device | str) -> Edges:
        """Return the same edges on another device."""
        return replace(
            self,
            src=self.src.to(device),
            dst=self.dst.to(device),
            dst_ptr=self.dst_ptr.to(device),
            src_perm=self.src_perm.to(device),
            src_ptr=self.src_ptr.to(device),
            tiles=None if self.tiles is None else self.tiles.to(device),
        )


def _pointers(index: Tensor, num_nodes: int) -> Tensor:
    counts = torch.bincount(index, minlength=num_nodes)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
