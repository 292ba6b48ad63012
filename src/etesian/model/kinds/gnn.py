"""Model kind ``gnn``: messages along edges, made by MLPs; nodes and edges are updated with residuals [1]_.

With f and g MLPs of two hidden layers and a norm behind them, for an edge e from j to i::

    e'  = e + f(x_i, x_j, e)
    x_i' = x_i + g(x_i, sum of e' over the edges into i)

The encoder embeds data nodes, hidden nodes and edges by such MLPs, sends messages to the hidden nodes, and updates the
data nodes by g(x, x), which then are what the decoder starts from. The decoder reads the outputs off by an MLP without
a norm.

Names in the state dict: ``encoder.embed_source``, ``encoder.embed_destination``, ``encoder.embed_edges``,
``decoder.embed_edges``, ``decoder.head``, ``processor.embed_edges``, ``processor.edges.trainable``; inside
``encoder.block``, ``decoder.block`` and ``processor.blocks.<i>``: ``messages`` (f) and ``update`` (g).

References
----------
.. [1] Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks,
   https://arxiv.org/abs/1806.01261
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.graph.edges import Edges
from etesian.kernels.resolve import LayerKernels
from etesian.kernels.segments import rows_of_destinations, rows_of_sources, sums_into_destinations
from etesian.model.block import Block
from etesian.model.chunks import chunk_by_chunk, cut
from etesian.model.decoder import Decoder, shrink
from etesian.model.deep_mlp import DeepMLP, hidden_layers
from etesian.model.encoder import Encoder
from etesian.model.exchange import Halo
from etesian.model.features import EdgeFeatures, for_products
from etesian.schema.model import (
    COMPONENTS,
    EdgeTrainableParameters,
    HeadlessSettings,
    MapperSettings,
    ModelSettings,
    ProcessorSettings,
)
from etesian.schema.registry import register


class GraphNetworkSettings(HeadlessSettings):
    """Encoder, processor or decoder of kind ``gnn``."""

    can_be_shared: ClassVar[bool] = True
    kind: Literal["gnn"] = "gnn"
    mlp_hidden_ratio: float = Field(default=1.0, gt=0, le=1024)
    """Hidden channels of the MLPs of nodes and embeddings, in channels of the model; that of the messages has as many
    as the model."""
    mlp_extra_layers: int = Field(default=0, ge=0, le=64)
    """Hidden layers of each MLP beyond the first two."""

    def activates(self) -> bool:
        """Tell whether the slot ``Activation`` is called by others than the MLP."""
        return True

    def hidden(self, num_channels: int) -> int:
        """Return the hidden channels of the MLPs of nodes and embeddings."""
        return int(num_channels * self.mlp_hidden_ratio)


@register("encoder", "gnn")
class GraphNetworkEncoderSettings(GraphNetworkSettings, MapperSettings):
    """Section ``model.encoder`` of kind ``gnn``: the data nodes send messages to the hidden nodes."""

    embeds_data: ClassVar[bool] = True

    def build(
        self, data_dim: int, hidden_dim: int, num_channels: int, edges: EdgeFeatures, kernels: LayerKernels
    ) -> Encoder:
        """Return the encoder."""
        return GraphNetworkEncoder(data_dim, hidden_dim, num_channels, edges, self, kernels)


@register("processor", "gnn")
class GraphNetworkProcessorSettings(GraphNetworkSettings, ProcessorSettings):
    """Section ``model.processor`` of kind ``gnn``: hidden nodes send messages to their neighbours."""

    edge_sets: ClassVar[tuple[str, ...]] = ("hidden2hidden",)

    def build(
        self, num_channels: int, graph: HeteroData, learnt: EdgeTrainableParameters, kernels: LayerKernels
    ) -> nn.Module:
        """Return the processor; the graph has edges hidden to hidden."""
        edges = EdgeFeatures(graph, "hidden", "hidden", learnt.hidden2hidden or 0)
        return GraphNetworkProcessor(num_channels, edges, self, kernels)


@register("decoder", "gnn")
class GraphNetworkDecoderSettings(GraphNetworkSettings, MapperSettings):
    """Section ``model.decoder`` of kind ``gnn``: the hidden nodes send messages to the data nodes."""

    def build(
        self, data_dim: int, num_outputs: int, num_channels: int, edges: EdgeFeatures, kernels: LayerKernels,
        *, embedded: bool,
    ) -> Decoder:  # fmt: skip
        """Return the decoder; data nodes that are `embedded` already are taken as they are."""
        return GraphNetworkDecoder(None if embedded else data_dim, num_outputs, num_channels, edges, self, kernels)


@register("model", "gnn")
class GraphNetworkModelSettings(ModelSettings):
    """Section ``model`` of kind ``gnn``."""

    component_kinds: ClassVar[dict[str, str]] = dict.fromkeys(COMPONENTS, "gnn")
    kind: Literal["gnn"] = "gnn"


class Embedding(Block):
    """Features of nodes or edges to the channels of the model, [N, F] to [N, C]."""

    def __init__(
        self, in_features: int, num_channels: int, settings: GraphNetworkSettings, kernels: LayerKernels
    ) -> None:
        super().__init__()
        hidden = settings.hidden(num_channels)
        self.mlp = DeepMLP(in_features, hidden, num_channels, settings.mlp_extra_layers, kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, F] to [N, C]."""
        embedded: Tensor = self.mlp(for_products(x))
        return embedded


class Messages(Block):
    """New edges from both their ends and themselves, and their sums into the destination nodes."""

    def __init__(self, num_channels: int, settings: GraphNetworkSettings, kernels: LayerKernels) -> None:
        super().__init__()
        self.mlp = DeepMLP(3 * num_channels, num_channels, num_channels, settings.mlp_extra_layers, kernels)

    def forward(self, x_src: Tensor, x_dst: Tensor, edge: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Return sums [N_dst, C] and new edges [M, C] of nodes [N_src, C] and [N_dst, C] and edges [M, C]."""
        ends = rows_of_destinations(x_dst, edges), rows_of_sources(x_src, edges)
        edge = edge + self.mlp(torch.cat([*ends, edge], dim=-1))
        return sums_into_destinations(edge, edges), edge


class Update(Block):
    """New nodes from themselves and what they were sent."""

    def __init__(self, num_channels: int, settings: GraphNetworkSettings, kernels: LayerKernels) -> None:
        super().__init__()
        hidden = settings.hidden(num_channels)
        self.mlp = DeepMLP(2 * num_channels, hidden, num_channels, settings.mlp_extra_layers, kernels)

    def forward(self, x: Tensor, received: Tensor) -> Tensor:
        """Map nodes [N, C] and sums [N, C] to nodes [N, C]."""
        updated: Tensor = x + self.mlp(torch.cat([x, received], dim=-1))
        return updated


class MessagePassing(nn.Module):
    """One step: messages along the edges, then the nodes that they lead to."""

    def __init__(self, num_channels: int, settings: GraphNetworkSettings, kernels: LayerKernels) -> None:
        super().__init__()
        self.messages = Messages(num_channels, settings, kernels)
        self.update = Update(num_channels, settings, kernels)

    def forward(self, x_src: Tensor, x_dst: Tensor, edge: Tensor, edges: Edges) -> tuple[Tensor, Tensor]:
        """Return new destination nodes [N_dst, C] and new edges [M, C]."""
        received, edge = self.messages(x_src, x_dst, edge, edges)
        return self.update(x_dst, received), edge


class Head(Block):
    """The output variables off the nodes, [N, C] to [N, num_outputs]; no norm."""

    def __init__(
        self, num_channels: int, num_outputs: int, settings: GraphNetworkSettings, kernels: LayerKernels
    ) -> None:
        super().__init__()
        hidden = settings.hidden(num_channels)
        self.hidden = hidden_layers(num_channels, hidden, 2 + settings.mlp_extra_layers, kernels)
        self.output = kernels.Linear(hidden, num_outputs)
        shrink(self.output)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, C] to [N, num_outputs]."""
        outputs: Tensor = self.output(self.hidden(x))
        return outputs


class GraphNetworkEncoder(Encoder):
    """Embeds data nodes, hidden nodes and edges, and lets the data nodes send messages to the hidden nodes.

    Parameters are those of :class:`~etesian.model.encoder.GraphTransformerEncoder`.
    """

    def __init__(
        self,
        data_dim: int,
        hidden_dim: int,
        num_channels: int,
        edges: EdgeFeatures,
        settings: GraphNetworkEncoderSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.embed_source = Embedding(data_dim, num_channels, settings, kernels)
        self.embed_destination = Embedding(hidden_dim, num_channels, settings, kernels)
        self.embed_edges = Embedding(edges.dim, num_channels, settings, kernels)
        self.edges = edges
        self.block = MessagePassing(num_channels, settings, kernels)
        self.num_chunks = settings.num_chunks
        self.cut()

    def cut(self) -> None:
        """Cut the edges that are there into chunks."""
        self.chunks = cut(self.edges.static.edges(1), self.num_chunks, "model.encoder.num_chunks")

    def forward(
        self, x_data: Tensor, x_hidden: Tensor, copies: int, source: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return data nodes [(copies N_data), C] and hidden nodes [(copies N_hidden), C]; see :class:`Encoder`."""
        data = self.embed_source(x_data)  # [(copies N_data), C]
        source = data if source is None else self.embed_source(source)  # [(copies N_src), C]
        if len(self.chunks):
            edge_attr = self.edges.attributes(copies)
            hidden = chunk_by_chunk(self._update, self.chunks, source, x_hidden, edge_attr, copies)
        else:
            hidden = self._update(source, x_hidden, *self.edges(copies))
        return self.block.update(data, data), hidden

    def _update(self, source: Tensor, x_hidden: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        destination = self.embed_destination(x_hidden)  # [N_dst, C]
        updated: Tensor = self.block(source, destination, self.embed_edges(edge_attr), edges)[0]
        return updated


class GraphNetworkProcessor(nn.Module):
    """Message passing among the hidden nodes; the edges, embedded once, are updated from block to block."""

    def __init__(
        self,
        num_channels: int,
        edges: EdgeFeatures,
        settings: GraphNetworkProcessorSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.edges = edges
        self.embed_edges = Embedding(edges.dim, num_channels, settings, kernels)
        self.blocks = nn.ModuleList(MessagePassing(num_channels, settings, kernels) for _ in range(settings.num_layers))
        self.halo: Halo | None = None  # where processes share the model

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] to the same shape."""
        edge = self.embed_edges(self.edges.attributes(1)).repeat(copies, 1)  # [(copies M), C]; the copies are alike
        edges = self.edges.static.edges(copies)
        for block in self.blocks:
            source = x if self.halo is None else self.halo(x, copies)
            x, edge = block(source, x, edge, edges)
        return x


class GraphNetworkDecoder(Decoder):
    """Lets the hidden nodes send messages to the data nodes, and reads the output variables off those.

    Parameters are those of :class:`~etesian.model.decoder.GraphTransformerDecoder`, but for `data_dim`: None where the
    data nodes have the channels of the model already.
    """

    def __init__(
        self,
        data_dim: int | None,
        num_outputs: int,
        num_channels: int,
        edges: EdgeFeatures,
        settings: GraphNetworkDecoderSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.embed_destination = None if data_dim is None else Embedding(data_dim, num_channels, settings, kernels)
        self.embed_edges = Embedding(edges.dim, num_channels, settings, kernels)
        self.edges = edges
        self.block = MessagePassing(num_channels, settings, kernels)
        self.num_chunks = settings.num_chunks
        self.cut()
        self.head = Head(num_channels, num_outputs, settings, kernels)

    def cut(self) -> None:
        """Cut the edges that are there into chunks."""
        self.chunks = cut(self.edges.static.edges(1), self.num_chunks, "model.decoder.num_chunks")

    def forward(self, x_hidden: Tensor, x_data: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] and data nodes [(copies N_data), F] to [.., num_outputs]."""
        if len(self.chunks):
            edge_attr = self.edges.attributes(copies)
            return chunk_by_chunk(self._update, self.chunks, x_hidden, x_data, edge_attr, copies)
        return self._update(x_hidden, x_data, *self.edges(copies))

    def _update(self, x_hidden: Tensor, x_data: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        destination = x_data if self.embed_destination is None else self.embed_destination(x_data)  # [N_dst, C]
        destination, _ = self.block(x_hidden, destination, self.embed_edges(edge_attr), edges)
        outputs: Tensor = self.head(destination)
        return outputs
