"""The encoder: from the data nodes to the hidden nodes."""

from __future__ import annotations

from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.chunks import chunk_by_chunk, cut
from etesian.model.features import EdgeFeatures
from etesian.schema.model import MapperSettings


class Encoder(nn.Module):
    """Embeds data and hidden nodes, then lets the hidden nodes attend to the data nodes.

    Parameters
    ----------
    data_dim, hidden_dim : int
        Features of a data node and of a hidden node.
    num_channels : int
        Width inside.
    edges : EdgeFeatures
        Edges from data to hidden nodes.
    settings : MapperSettings
        Section ``model.encoder``.
    kernels : LayerKernels
        Kernels of the encoder.
    """

    def __init__(
        self,
        data_dim: int,
        hidden_dim: int,
        num_channels: int,
        edges: EdgeFeatures,
        settings: MapperSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.embed_source = kernels.Linear(data_dim, num_channels)
        self.embed_destination = kernels.Linear(hidden_dim, num_channels)
        self.edges = edges
        self.block = GraphTransformerBlock(num_channels, edges.dim, settings, kernels, bipartite=True)
        self.num_chunks = settings.num_chunks
        self.cut()

    def cut(self) -> None:
        """Cut the edges that are there into chunks."""
        self.chunks = cut(self.edges.static.edges(1), self.num_chunks, "model.encoder.num_chunks")

    def forward(self, x_data: Tensor, x_hidden: Tensor, copies: int) -> Tensor:
        """Map features [(copies N_src), data_dim] and [(copies N_hidden), hidden_dim] to [(copies N_hidden), C]."""
        if len(self.chunks):
            edge_attr = self.edges.attributes(copies)
            return chunk_by_chunk(self._update, self.chunks, x_data, x_hidden, edge_attr, copies)
        return self._update(x_data, x_hidden, *self.edges(copies))

    def _update(self, x_data: Tensor, x_hidden: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        source = self.embed_source(x_data)  # [N_src, C]
        destination = self.embed_destination(x_hidden)  # [N_dst, C]
        return self.block(source, destination, edge_attr, edges)  # [N_dst, C]
