"""What processes that share a model send each other: source nodes of edges, and heads of attention.

All of it is moved by one operation, :func:`all_to_all`, whose gradients go the way back. Every process of a group has
to call it as often and in the same order, forward and backward: the parts of a model are called alike on all of them.

Shapes: N nodes, n of this process, F features; `copies` graphs (batch and ensemble) side by side, B of them; H heads, h
of each process, C channels a head; P processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, all_to_all_single

from etesian.graph.partition import EdgePart, NodeParts


def all_to_all(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: ProcessGroup) -> Tensor:
    """Send rows to the processes of a group, and return what they send.

    Parameters
    ----------
    rows : Tensor, shape (sum of sent, ...)
        Those for the first process, then those for the second, and so on.
    sent, received : sequence of int, P each
        How many rows go to, and come from, each process.
    group : ProcessGroup
        The processes.

    Returns
    -------
    Tensor, shape (sum of received, ...)
        Those of the first process first.
    """
    result: Tensor = _AllToAll.apply(rows, list(sent), list(received), group)
    return result


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
        ctx.back = (received, sent, group)
        return _moved(rows, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _moved(grad, *ctx.back), None, None, None


def _moved(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    result = rows.new_empty(sum(received), *rows.shape[1:])
    all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


class Halo(nn.Module):
    """Puts the source nodes of a process' edges together: its own, and those that others have.

    Parameters
    ----------
    part : EdgePart
        The edges of this process.
    group : ProcessGroup
        The processes that share the model.
    """

    send: Tensor

    def __init__(self, part: EdgePart, group: ProcessGroup) -> None:
        super().__init__()
        self.register_buffer("send", part.send, persistent=False)
        self.sent, self.received, self.group = part.sent, part.received, group

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """From this process' nodes [(copies n), F] to the sources of its edges, [(copies N_src), F]."""
        by_node = x.unflatten(0, (copies, -1)).transpose(0, 1)  # [n, B, F]
        sources = all_to_all(by_node.index_select(0, self.send), self.sent, self.received, self.group)
        return sources.transpose(0, 1).flatten(0, 1)


class Heads(nn.Module):
    """Gives each process some of the heads at all nodes, in place of all heads at some nodes; and back.

    Parameters
    ----------
    nodes : NodeParts
        Which nodes each process has.
    rank : int
        Which of them this process is.
    order : Tensor, shape (N,), or None
        Numbers of the nodes in the order that attention wants; None: as the graph has them.
    group : ProcessGroup
        The processes that share the model.
    """

    order: Tensor
    back: Tensor

    def __init__(self, nodes: NodeParts, rank: int, order: Tensor | None, group: ProcessGroup) -> None:
        super().__init__()
        numbers = torch.cat(nodes.parts).argsort()  # where each node stands among those of all processes
        numbers = numbers if order is None else numbers[order.to(numbers.device)]
        self.register_buffer("order", numbers, persistent=False)
        self.register_buffer("back", numbers.argsort(), persistent=False)
        self.counts, self.group = tuple(part.numel() for part in nodes.parts), group
        self.own = (self.counts[rank],) * len(self.counts)

    def split(self, x: Tensor, copies: int) -> Tensor:
        """From nodes of this process [(copies n), K, H, C] to [K, copies, h, N, C]; K tensors are moved together."""
        parts = x.unflatten(0, (copies, -1)).unflatten(3, (len(self.counts), -1))  # [B, n, K, P, h, C]
        rows = parts.permute(3, 1, 0, 2, 4, 5).flatten(0, 1)  # [P n, B, K, h, C]
        nodes = all_to_all(rows, self.own, self.counts, self.group).index_select(0, self.order)  # [N, B, K, h, C]
        return nodes.permute(2, 1, 3, 0, 4)

    def join(self, x: Tensor) -> Tensor:
        """From [copies, h, N, C] to all heads at the nodes of this process, [(copies n), (H C)]."""
        nodes = x.permute(2, 0, 1, 3).index_select(0, self.back)  # [N, B, h, C]
        rows = all_to_all(nodes, self.counts, self.own, self.group)  # [P n, B, h, C]
        return rows.unflatten(0, (len(self.counts), -1)).permute(2, 1, 0, 3, 4).flatten(2).flatten(0, 1)


def gather(x: Tensor, counts: Sequence[int], group: ProcessGroup) -> Tensor:
    """Put the parts of a field together, on every process.

    Parameters
    ----------
    x : Tensor, shape (B, E, n, V)
        What this process has.
    counts : sequence of int, P
        n of each process.
    group : ProcessGroup
        The processes that share the model.

    Returns
    -------
    Tensor, shape (B, E, N, V)
        All parts, the first first.
    """
    by_point = x.permute(2, 0, 1, 3)  # [n, B, E, V]
    points = all_to_all(by_point.repeat(len(counts), 1, 1, 1), [len(by_point)] * len(counts), counts, group)
    return points.permute(1, 2, 0, 3)
