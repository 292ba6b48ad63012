"""The decoder: from the hidden nodes back to the data nodes, and to the output variables."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.chunks import chunk_by_chunk, cut
from etesian.model.features import EdgeFeatures
from etesian.schema.model import BlockSettings, MapperSettings
from etesian.schema.registry import register

OUTPUT_GAIN = 0.01
"""Factor on the first weights of the output head.

The untrained model then adds next to nothing to its input: with the residual it starts near persistence, without it
near the mean of each variable, and every parameter still gets a gradient in the first step, as it would not with 0.
"""


def shrink(output: nn.Module, gain: float = OUTPUT_GAIN) -> None:
    """Scale the first weights of an output head down."""
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.mul_(gain)


class Decoder(nn.Module):
    """What a decoder of any kind is: from the hidden to the data nodes.

    It is called with hidden nodes [(copies N_hidden), C], data nodes [(copies N_data), data_dim] as the encoder handed
    them on, and copies; it returns outputs [(copies N_data), num_outputs].
    """


@register("decoder", "graphtransformer")
class GraphTransformerDecoderSettings(BlockSettings, MapperSettings):
    """Section ``model.decoder`` of kind ``graphtransformer``: the data nodes attend to the hidden nodes."""

    can_be_shared: ClassVar[bool] = True
    kind: Literal["graphtransformer"] = "graphtransformer"

    def build(
        self, data_dim: int, num_outputs: int, num_channels: int, edges: EdgeFeatures, kernels: LayerKernels,
        *, embedded: bool,
    ) -> Decoder:  # fmt: skip
        """Return the decoder; data nodes that are `embedded` already are embedded once more."""
        return GraphTransformerDecoder(data_dim, num_outputs, num_channels, edges, self, kernels)


class GraphTransformerDecoder(Decoder):
    """Embeds the data nodes anew, lets them attend to the hidden nodes, and reads the output variables off them.

    Parameters
    ----------
    data_dim, num_outputs : int
        Features of a data node on the way in, and output variables.
    num_channels : int
        Width inside, and of the hidden nodes.
    edges : EdgeFeatures
        Edges from hidden to data nodes.
    settings : MapperSettings
        Section ``model.decoder``.
    kernels : LayerKernels
        Kernels of the decoder.
    gain : float
        Factor on the first weights of the output head.
    """

    def __init__(
        self,
        data_dim: int,
        num_outputs: int,
        num_channels: int,
        edges: EdgeFeatures,
        settings: GraphTransformerDecoderSettings,
        kernels: LayerKernels,
        gain: float = OUTPUT_GAIN,
    ) -> None:
        super().__init__()
        self.embed_destination = kernels.Linear(data_dim, num_channels)
        self.edges = edges
        self.block = GraphTransformerBlock(num_channels, edges.dim, settings, kernels, bipartite=True)
        self.num_chunks = settings.num_chunks
        self.cut()
        self.norm_output = kernels.LayerNorm(num_channels)
        self.output = kernels.Linear(num_channels, num_outputs)
        shrink(self.output, gain)

    def cut(self) -> None:
        """Cut the edges that are there into chunks."""
        self.chunks = cut(self.edges.static.edges(1), self.num_chunks, "model.decoder.num_chunks")

    def forward(self, x_hidden: Tensor, x_data: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_src), C] and data nodes [(copies N_data), data_dim] to [.., num_outputs]."""
        if len(self.chunks):
            edge_attr = self.edges.attributes(copies)
            return chunk_by_chunk(self._update, self.chunks, x_hidden, x_data, edge_attr, copies)
        return self._update(x_hidden, x_data, *self.edges(copies))

    def _update(self, x_hidden: Tensor, x_data: Tensor, edge_attr: Tensor, edges: Edges) -> Tensor:
        destination = self.embed_destination(x_data)  # [N_dst, C]
        destination = self.block(x_hidden, destination, edge_attr, edges)  # [N_dst, C]
        return self.output(self.norm_output(destination))  # [N_dst, num_outputs]
