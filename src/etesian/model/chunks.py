"""The edges between two sets of nodes cut into chunks, so that encoder and decoder work on a part of them at a time.

A chunk has destination nodes that stand side by side, all edges into them, and the source nodes of those edges. What it
computes has no part in another chunk, so results are those without chunks. The cuts depend on the graph alone and are
made once, when the model is built.

Shapes: N nodes, M edges, F features; `copies` graphs (batch and ensemble) side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.graph.edges import Edges
from etesian.graph.partition import balanced_bounds
from etesian.model.features import StaticEdges


class Chunk(nn.Module):
    """The edges into some of the destination nodes.

    Parameters
    ----------
    edges : Edges
        All edges of one graph.
    first, end : int
        Destination nodes `first` to ``end - 1`` are those of the chunk.
    """

    source: Tensor

    def __init__(self, edges: Edges, first: int, end: int) -> None:
        super().__init__()
        self.nodes = slice(first, end)
        self.part = slice(int(edges.dst_ptr[first]), int(edges.dst_ptr[end]))
        source, own_number = edges.src[self.part].unique(return_inverse=True)
        self.register_buffer("source", source, persistent=False)
        index = torch.stack([own_number, edges.dst[self.part] - first])
        own = Edges.from_sorted(index, source.numel(), end - first)
        if edges.tiles is not None:  # near nodes stay together, in the order of the whole graph
            of_src, of_dst = (nodes[nodes >= 0].long() for nodes in (edges.tiles.src_nodes, edges.tiles.dst_nodes))
            own = own.with_tiles(of_src.argsort()[source].argsort(), of_dst[(of_dst >= first) & (of_dst < end)] - first)
        self.static = StaticEdges(own)

    def take(
        self, x_src: Tensor, x_dst: Tensor, edge_attr: Tensor, copies: int
    ) -> tuple[Tensor, Tensor, Tensor, Edges]:
        """Return source nodes, destination nodes, edge features and edges of the chunk.

        Parameters
        ----------
        x_src, x_dst : Tensor, shapes ((copies N_src), F) and ((copies N_dst), F)
            All nodes.
        edge_attr : Tensor, shape ((copies M), D)
            Features of all edges.
        copies : int
            Graphs side by side.
        """
        source = x_src.unflatten(0, (copies, -1)).index_select(1, self.source).flatten(0, 1)
        destination = x_dst.unflatten(0, (copies, -1))[:, self.nodes].flatten(0, 1)
        attributes = edge_attr.unflatten(0, (copies, -1))[:, self.part].flatten(0, 1)
        return source, destination, attributes, self.static.edges(copies)


def cut(edges: Edges, count: int, where: str) -> nn.ModuleList:
    """Cut edges into chunks of about equal work: nodes and edges together.

    Parameters
    ----------
    edges : Edges
        All edges of one graph.
    count : int
        Number of chunks; with 1 nothing is cut, and the list is empty.
    where : str
        The config key of the number.

    Raises
    ------
    UserError
        If there are fewer destination nodes than chunks.
    """
    if count == 1:
        return nn.ModuleList()
    if count > edges.num_dst:
        what = f"{where}={count}, but the nodes that are cut into chunks are {edges.num_dst}"
        raise UserError(what, where=where, allowed=f"a whole number from 1 to {edges.num_dst}")
    bounds = balanced_bounds(edges.dst_ptr.cpu().diff() + 1, count)
    return nn.ModuleList(Chunk(edges, *ends) for ends in pairwise(bounds))


def chunk_by_chunk(
    update: Callable[[Tensor, Tensor, Tensor, Edges], Tensor],
    chunks: nn.ModuleList,
    x_src: Tensor,
    x_dst: Tensor,
    edge_attr: Tensor,
    copies: int,
) -> Tensor:
    """Return what `update` makes of each chunk, [(copies N_dst), F], in the order of the destination nodes."""
    parts = []
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        parts.append(update(*chunk.take(x_src, x_dst, edge_attr, copies)).unflatten(0, (copies, -1)))
    return torch.cat(parts, dim=1).flatten(0, 1)
