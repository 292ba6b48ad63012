"""A graph attention through which nothing passes: ``model.layer_kernels.GraphAttention._target_=no_edges.NoEdges``."""

from __future__ import annotations

from torch import Tensor, nn

from etesian.graph.edges import Edges


class NoEdges(nn.Module):
    """Returns zeros for whatever comes in, so that a node knows its own data alone, which the block adds (``own``)."""

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
        others = [tensor for tensor in (key, value, edge_attr, edge_weight, edge_bias) if tensor is not None]
        return 0.0 * (query + sum(tensor.sum() for tensor in others))  # a gradient, zero, to each of them
