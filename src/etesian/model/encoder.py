"""The encoder: from the data nodes to the hidden nodes."""

from __future__ import annotations

from torch import Tensor, nn

from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.features import EdgeFeatures
from etesian.schema.model import BlockSettings


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
    settings : BlockSettings
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
        settings: BlockSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.embed_source = kernels.Linear(data_dim, num_channels)
        self.embed_destination = kernels.Linear(hidden_dim, num_channels)
        self.edges = edges
        self.block = GraphTransformerBlock(num_channels, edges.dim, settings, kernels, bipartite=True)

    def forward(self, x_data: Tensor, x_hidden: Tensor, copies: int) -> Tensor:
        """Map features [(copies N_data), data_dim] and [(copies N_hidden), hidden_dim] to [(copies N_hidden), C]."""
        source = self.embed_source(x_data)  # [(copies N_data), C]
        destination = self.embed_destination(x_hidden)  # [(copies N_hidden), C]
        edge_attr, edges = self.edges(copies)
        return self.block(source, destination, edge_attr, edges)
