"""The graph-transformer block: attention over edges, then an MLP, each after a norm and with a residual.

Shapes: N nodes (batch and ensemble folded in), M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.resolve import LayerKernels
from etesian.model.projections import project
from etesian.schema.model import BlockSettings


class Block(nn.Module):
    """A layer of the model as a whole: what activation checkpointing computes a second time, and what is compiled."""


class GraphTransformerBlock(Block):
    """One step of message passing with attention, from source to destination nodes.

    ``x' = x + projection(attention(q, k, v, edges) + own(norm(x)))``, ``x'' = x' + mlp(norm(x'))``, where q comes from
    the normed destination nodes, k and v from the normed source nodes [1]_. With a block of one set of nodes, source
    and destination are the same and share the first norm.

    Parameters
    ----------
    num_channels : int
        Width of the nodes, H C.
    edge_dim : int
        Features an edge, D.
    settings : BlockSettings
        Heads, width of the MLP, norms of queries and keys, and whether layers of one input are one product.
    kernels : LayerKernels
        Where every layer comes from.
    bipartite : bool
        Whether the source nodes are others than the destination nodes.

    Notes
    -----
    The graph attention computes the edge projection itself, from the weights of the layer `edge`, which is never
    called: see :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.

    References
    ----------
    .. [1] Shi et al. 2021, Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification,
       https://arxiv.org/abs/2009.03509
    """

    def __init__(
        self, num_channels: int, edge_dim: int, settings: BlockSettings, kernels: LayerKernels, *, bipartite: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.fuse_projections = settings.num_heads, settings.fuse_projections
        head_channels = num_channels // settings.num_heads
        self.norm_attention = kernels.LayerNorm(num_channels)
        self.norm_source = kernels.LayerNorm(num_channels) if bipartite else None
        self.query = kernels.Linear(num_channels, num_channels)
        self.key = kernels.Linear(num_channels, num_channels)
        self.value = kernels.Linear(num_channels, num_channels)
        self.own = kernels.Linear(num_channels, num_channels)
        self.edge = kernels.Linear(edge_dim, num_channels)
        self.query_norm = kernels.QueryNorm(head_channels) if settings.qk_norm else None
        self.key_norm = kernels.KeyNorm(head_channels) if settings.qk_norm else None
        self.attention = kernels.GraphAttention(settings.num_heads, head_channels)
        self.projection = kernels.Linear(num_channels, num_channels)
        self.norm_mlp = kernels.LayerNorm(num_channels)
        hidden_channels = int(num_channels * settings.mlp_hidden_ratio)
        self.mlp = kernels.MLP(num_channels, hidden_channels, num_channels, layer_kernels=kernels)

    def forward(self, x_src: Tensor | None, x_dst: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        """Update the destination nodes.

        Parameters
        ----------
        x_src : Tensor, shape (N_src, H C), or None
            Source nodes; None where they are the destination nodes. A block of one set of nodes is given them where
            other processes have some; they then share the destinations' norm.
        x_dst : Tensor, shape (N_dst, H C)
            Destination nodes.
        edge_attr : Tensor, shape (M, D)
            Edge features.
        edges : Edges
            The edges, sorted by destination.

        Returns
        -------
        Tensor, shape (N_dst, H C)
        """
        dst = self.norm_attention(x_dst)
        norm_source = self.norm_attention if self.norm_source is None else self.norm_source
        src = dst if x_src is None else norm_source(x_src)

        query, key, value, own = self._project(src, dst)
        query, key, value = self._heads(query), self._heads(key), self._heads(value)  # [N_dst or N_src, H, C]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)

        attended = self.attention(query, key, value, edge_attr, self.edge.weight, self.edge.bias, edges)
        attended = rearrange(attended, "n h c -> n (h c)")  # [N_dst, H C]
        x_dst = x_dst + self.projection(attended + own)
        return x_dst + self.mlp(self.norm_mlp(x_dst))

    def _project(self, src: Tensor, dst: Tensor) -> tuple[Tensor, ...]:
        """Return query [N_dst, H C], key and value [N_src, H C], and the destinations' own projection [N_dst, H C]."""
        if src is dst:
            layers = (self.query, self.key, self.value, self.own)
            return project(dst, layers, fused=self.fuse_projections)
        query, own = project(dst, (self.query, self.own), fused=self.fuse_projections)
        key, value = project(src, (self.key, self.value), fused=self.fuse_projections)
        return query, key, value, own

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "n (h c) -> n h c", h=self.num_heads)
