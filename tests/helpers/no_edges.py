"""A graph attention through which nothing passes: ``model.layer_kernels.GraphAttention._target_=no_edges.NoEdges``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges


class NoEdges(nn.Module):
    """Returns zeros, so that a node knows its own data alone (the block adds ``own`` of the destination node)."""

    def __init__(self, num_heads: int, head_channels: int) -> None:
        super().__init__()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        edge_weight: Tensor,
        edge_bias: Tensor | None,
        edges: Edges,
    ) -> Tensor:
        return torch.zeros_like(query)
