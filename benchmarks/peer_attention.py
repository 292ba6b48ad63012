"""The graph attention of anemoi-models 0.19 in the form of the slot ``GraphAttention``, to be measured beside others.

What a block of the peer does between its linear layers is done by a block of the peer: the projection of the edge
features, then ``apply_gt``. With its Triton backend that sorts the edges by source anew in every call, forward and
inference alike; with ``pyg`` it is torch_geometric's message passing. Its edges are sorted by destination once for a
graph, as here, so that this order is made outside the call. The peer is imported when a layer is built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.families import register_family

DISTRIBUTION = "anemoi-models"


class PeerGraphAttention(nn.Module):
    """The peer's attention with one of its backends.

    Parameters
    ----------
    num_heads, head_channels : int
        H and C.

    Raises
    ------
    ImportError
        If the peer can't be imported.
    RuntimeError
        If the peer takes another backend than the one that was asked for: it falls back to ``pyg`` where it finds no
        Triton or no GPU, and a variable of the environment chooses too.
    """

    backend: str

    def __init__(self, num_heads: int, head_channels: int) -> None:
        super().__init__()
        self.num_heads, self.head_channels = num_heads, head_channels
        block = _make_block(num_heads, num_heads * head_channels, self.backend)
        if block.graph_attention_backend != self.backend:
            raise RuntimeError(
                f"{DISTRIBUTION} takes its backend {block.graph_attention_backend!r}, not {self.backend!r}: that needs "
                "a GPU and Triton, and no ANEMOI_INFERENCE_GRAPHTRANSFORMER_ATTENTION_BACKEND in the environment"
            )
        self._block = (block,)  # in a tuple, so that its own layers are no part of this one
        self._edge_index: tuple[Edges, Tensor] | None = None

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
        """Attend over the edges; see :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`."""
        projected = nn.functional.linear(edge_attr, edge_weight, edge_bias)  # what the peer's lin_edge does
        return self._block[0].apply_gt(
            query=query,
            key=key,
            value=value,
            edges=projected.view(-1, self.num_heads, self.head_channels),
            edge_index=self._index_of(edges),
            size=(edges.num_src, edges.num_dst),
            edges_are_dst_sorted=True,
        )

    def _index_of(self, edges: Edges) -> Tensor:
        """Return the edges as the peer holds them, (2, M); made once for a graph."""
        if self._edge_index is None or self._edge_index[0] is not edges:
            self._edge_index = (edges, torch.stack([edges.src, edges.dst]))
        return self._edge_index[1]


class PeerTritonGraphAttention(PeerGraphAttention):
    """The peer's Triton kernel, on a GPU."""

    backend = "triton"


class PeerPygGraphAttention(PeerGraphAttention):
    """The peer's message passing by torch_geometric, on any device."""

    backend = "pyg"


TRITON = f"{__name__}.{PeerTritonGraphAttention.__name__}"
PYG = f"{__name__}.{PeerPygGraphAttention.__name__}"

for _target in (TRITON, PYG):
    register_family(_target, "graph_attention")


def _make_block(num_heads: int, channels: int, backend: str) -> Any:
    """Return a block of the peer's processor with the attention wanted; its layers are not used, so they are small."""
    try:
        from anemoi.models.layers.block import GraphTransformerProcessorBlock
        from anemoi.models.layers.utils import load_layer_kernels
    except ImportError as cause:
        raise ImportError(
            f"{DISTRIBUTION} can't be imported ({cause}): `pip install --no-deps --target FOLDER -r tests/peers.txt`, "
            "and FOLDER on PYTHONPATH"
        ) from cause
    return GraphTransformerProcessorBlock(
        in_channels=1,
        hidden_dim=1,
        out_channels=channels,
        num_heads=num_heads,
        edge_dim=1,
        layer_kernels=load_layer_kernels(),
        graph_attention_backend=backend,
    )
