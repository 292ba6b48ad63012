"""The encoder: from the data nodes to the hidden nodes."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.chunks import chunk_by_chunk, cut
from etesian.model.features import EdgeFeatures
from etesian.schema.model import BlockSettings, MapperSettings
from etesian.schema.registry import register


class Encoder(nn.Module):
    """What an encoder of any kind is: from the data to the hidden nodes.

    It is called with data nodes [(copies N_data), data_dim], hidden nodes [(copies N_hidden), hidden_dim], copies and,
    where processes share the model, the data nodes that its edges come from, else None; it returns the data nodes as
    the decoder gets them, and hidden nodes [(copies N_hidden), C].
    """


@register("encoder", "graphtransformer")
class GraphTransformerEncoderSettings(BlockSettings, MapperSettings):
    """Section ``model.encoder`` of kind ``graphtransformer``: the hidden nodes attend to the data nodes."""

    can_be_shared: ClassVar[bool] = True
    kind: Literal["graphtransformer"] = "graphtransformer"

    def build(
        self, data_dim: int, hidden_dim: int, num_channels: int, edges: EdgeFeatures, kernels: LayerKernels
    ) -> Encoder:
        """Return the encoder."""
        return GraphTransformerEncoder(data_dim, hidden_dim, num_channels, edges, self, kernels)


class GraphTransformerEncoder(Encoder):
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
        settings: GraphTransformerEncoderSettings,
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

    def forward(
        self, x_data: Tensor, x_hidden: Tensor, copies: int, source: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the data nodes as they came, and hidden nodes [(copies N_hidden), C]; see :class:`Encoder`."""
        source = x_data if source is None else source
        if len(self.chunks):
            edge_attr = self.edges.attributes(copies)
            return x_data, chunk_by_chunk(self._update, self.chunks, source, x_hidden, edge_attr, copies)
        return x_data, self._update(source, x_hidden, *self.edges(copies))

    def _update(self, x_data: Tensor, x_hidden: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        source = self.embed_source(x_data)  # [N_src, C]
        destination = self.embed_destination(x_hidden)  # [N_dst, C]
        return self.block(source, destination, edge_attr, edges)  # [N_dst, C]
