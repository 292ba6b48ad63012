"""Edges in tiles: nodes in blocks, and the nodes at the other ends of a block's edges, each once, 16 a tile.

Attention reads a node at the other end once for all edges into a block, and matrix units multiply whole tiles. The
fewer different nodes the edges of a block lead to, the fewer tiles: blocks hold nodes that are near each other, as
:func:`spatial_order` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEW, MANY = 16, 32
"""Nodes of a block: many of nodes that have few edges, so that a block has enough of them."""

FEW_EDGES = 5
"""Edges a node below which blocks hold `MANY`."""

SLOTS = 16
"""Nodes at the other ends in a tile: the least that matrix units take."""

_BITS = 10
"""Bits of a coordinate in a spatial order: steps of 12 km on the Earth."""


@dataclass(frozen=True)
class EdgeTiles:
    """Edges by blocks of their destinations, B_dst of them in T tiles, and once more by blocks of their sources.

    Attributes
    ----------
    dst_nodes : Tensor, shape (B_dst * rows,), int32
        The destinations of each block; -1 behind the last.
    dst_ptr : Tensor, shape (B_dst + 1,), int32
        Tiles ``dst_ptr[b]`` to ``dst_ptr[b + 1] - 1`` belong to block b.
    dst_slots : Tensor, shape (T, 16), int32
        The sources in the slots of each tile; -1 in slots that are not used.
    dst_edges : Tensor, shape (T, rows, 16), int16 or int32
        Which of the edges into a destination of the block comes from the source in a slot; -1 where there is none.
    src_nodes, src_ptr, src_slots : Tensor, int32
        The same by source, the destinations in the slots; the blocks may have another number of rows.
    src_edges : Tensor, shape (U, rows, 16), int32
        The edge between a source of the block and the destination in a slot; -1 where there is none.
    edge_ptr : Tensor, shape (N_dst + 1,), int32
        Edges ``edge_ptr[i]`` to ``edge_ptr[i + 1] - 1`` lead into destination i.
    """

    dst_nodes: Tensor
    dst_ptr: Tensor
    dst_slots: Tensor
    dst_edges: Tensor
    src_nodes: Tensor
    src_ptr: Tensor
    src_slots: Tensor
    src_edges: Tensor
    edge_ptr: Tensor

    @property
    def dst_rows(self) -> int:
        """Nodes of a block of destinations."""
        return self.dst_edges.shape[1]

    @property
    def src_rows(self) -> int:
        """Nodes of a block of sources."""
        return self.src_edges.shape[1]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in the order that the class takes them."""
        return [self.dst_nodes, self.dst_ptr, self.dst_slots, self.dst_edges,
                self.src_nodes, self.src_ptr, self.src_slots, self.src_edges, self.edge_ptr]  # fmt: skip

    def to(self, device: torch.device | str) -> EdgeTiles:
        """Return the same tiles on another device."""
        return EdgeTiles(*(tensor.to(device) for tensor in self.tensors()))

    def repeated(self, copies: int, num_src: int, num_dst: int, num_edges: int) -> EdgeTiles:
        """Return the tiles of `copies` graphs side by side, each of so many nodes and edges."""
        return EdgeTiles(
            dst_nodes=_shifted(self.dst_nodes, copies, num_dst),
            dst_ptr=_shifted_pointers(self.dst_ptr, copies),
            dst_slots=_shifted(self.dst_slots, copies, num_src),
            dst_edges=self.dst_edges.repeat(copies, 1, 1),
            src_nodes=_shifted(self.src_nodes, copies, num_src),
            src_ptr=_shifted_pointers(self.src_ptr, copies),
            src_slots=_shifted(self.src_slots, copies, num_dst),
            src_edges=_shifted(self.src_edges, copies, num_edges),
            edge_ptr=_shifted_pointers(self.edge_ptr, copies),
        )


def make_tiles(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, src_order: Tensor | None, dst_order: Tensor | None
) -> EdgeTiles:
    """Cut edges that are sorted by destination into tiles.

    Parameters
    ----------
    src, dst : Tensor, shape (M,)
        Source and destination of each edge.
    num_src, num_dst : int
        Number of nodes on each side.
    src_order, dst_order : Tensor or None
        Numbers of all nodes of a side in an order that keeps near nodes together; None: as they are numbered.
    """
    src_rank, dst_rank = _ranks(src_order, num_src), _ranks(dst_order, num_dst)
    pointers, edge = _pointers(torch.bincount(dst, minlength=num_dst)), torch.arange(dst.numel())
    number = edge - pointers[dst]
    number = number.to(torch.int16 if number.numel() == 0 or int(number.max()) < 2**15 else torch.int32)
    dst_rows, src_rows = (MANY if dst.numel() < FEW_EDGES * nodes else FEW for nodes in (num_dst, num_src))
    return EdgeTiles(
        _nodes(dst_order, num_dst, dst_rows),
        *_tiles(dst_rank[dst], src, src_rank, num_dst, dst_rows, number),
        _nodes(src_order, num_src, src_rows),
        *_tiles(src_rank[src], dst, dst_rank, num_src, src_rows, edge.int()),
        pointers.int(),
    )


def spatial_order(latlons: Tensor) -> Tensor:
    """Return the numbers of nodes in an order along which neighbours are near: a Morton curve in space [1]_.

    Parameters
    ----------
    latlons : Tensor, shape (N, 2)
        Latitude and longitude, radians.

    Returns
    -------
    Tensor, shape (N,)

    References
    ----------
    .. [1] Morton 1966, A computer oriented geodetic data base and a new technique in file sequencing, IBM
    """
    latitude, longitude = latlons.double().unbind(-1)
    xyz = torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()])
    steps = ((xyz + 1) / 2 * 2**_BITS).long().clamp(0, 2**_BITS - 1)
    code = torch.zeros_like(steps[0])
    for bit in range(_BITS):
        for axis in range(3):
            code |= ((steps[axis] >> bit) & 1) << (3 * bit + axis)
    return torch.argsort(code, stable=True)


def _tiles(
    rank: Tensor, other: Tensor, other_rank: Tensor, num_nodes: int, rows: int, marks: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pointers, slots, and the edges by a mark each, of the tiles of one side.

    `rank` is that of each edge's node in the side's order.
    """
    num_blocks = -(-num_nodes // rows)
    ends = rank // rows * max(1, other_rank.numel()) + other_rank[other]  # block, and node at the other end
    # Edges between the same two nodes can't share a slot: the first of them takes one, its twins take others.
    between = ends * rows + rank % rows
    by_pair = torch.argsort(between, stable=True)
    twin = torch.empty_like(by_pair)
    twin[by_pair] = _number_in_run(between[by_pair])
    key = ends * (int(twin.max()) + 1 if twin.numel() else 1) + twin
    edge = torch.argsort(key, stable=True)  # the edges in order of their slots
    first = _starts(key[edge])
    block_of_slot = rank[edge][first] // rows
    number = _number_in_run(block_of_slot)
    ptr = _pointers(-(-torch.bincount(block_of_slot, minlength=num_blocks) // SLOTS))
    column = ptr[block_of_slot] * SLOTS + number  # of each slot, counted over all tiles

    num_tiles = int(ptr[-1])
    slots = torch.full((num_tiles * SLOTS,), -1, dtype=torch.int32)
    slots[column] = other[edge][first].int()
    column = column[first.cumsum(0) - 1]  # of each edge
    edges = torch.full((num_tiles, rows, SLOTS), -1, dtype=marks.dtype)
    edges[column // SLOTS, rank[edge] % rows, column % SLOTS] = marks[edge]
    return ptr.int(), slots.view(-1, SLOTS), edges


def _starts(values: Tensor) -> Tensor:
    """Tell of each of some sorted values whether it is the first of its kind."""
    starts = torch.ones_like(values, dtype=torch.bool)
    starts[1:] = values[1:] != values[:-1]
    return starts


def _number_in_run(values: Tensor) -> Tensor:
    """Count the equal ones among sorted values: 0 for the first, 1 for the next."""
    number = torch.arange(values.numel())
    return number - torch.where(_starts(values), number, 0).cummax(0).values if values.numel() else number


def _ranks(order: Tensor | None, num_nodes: int) -> Tensor:
    if order is None:
        return torch.arange(num_nodes)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(num_nodes)
    return ranks


def _nodes(order: Tensor | None, num_nodes: int, rows: int) -> Tensor:
    nodes = torch.full((-(-num_nodes // rows) * rows,), -1, dtype=torch.int32)
    nodes[:num_nodes] = (torch.arange(num_nodes) if order is None else order).int()
    return nodes


def _pointers(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _shifted(index: Tensor, copies: int, step: int) -> Tensor:
    """Repeat numbers along the first axis, each copy's moved on by a step; -1 stays."""
    moves = torch.arange(copies, device=index.device, dtype=index.dtype).view(-1, *[1] * index.dim()) * step
    return torch.where(index < 0, index, index + moves).flatten(0, 1)


def _shifted_pointers(pointers: Tensor, copies: int) -> Tensor:
    step = torch.arange(copies, device=pointers.device, dtype=pointers.dtype)[:, None] * pointers[-1]
    return torch.cat([pointers[:1], (pointers[None, 1:] + step).flatten()])
