"""Model kind ``graphtransformer``: the processor too is made of graph-transformer blocks, along the hidden edges.

Names in the state dict beside those of :mod:`etesian.model.encoder_processor_decoder`: ``processor.edges.trainable``;
its blocks are like those of the encoder, without ``norm_source``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import LayerKernels
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.features import EdgeFeatures
from etesian.model.processor import Processor
from etesian.schema.model import EdgeTrainableParameters, ModelSettings
from etesian.schema.registry import register


class AllEdgeTrainableParameters(EdgeTrainableParameters):
    """Learnt features an edge."""

    hidden2hidden: int = Field(default=8, ge=0)
    """A processor edge."""


@register("model", "graphtransformer")
class GraphTransformerSettings(ModelSettings):
    """Section ``model`` of kind ``graphtransformer``."""

    kind: Literal["graphtransformer"] = "graphtransformer"
    edge_trainable_parameters: AllEdgeTrainableParameters = AllEdgeTrainableParameters()


class GraphTransformer(EncoderProcessorDecoder):
    """The processor lets each hidden node attend to its neighbours.

    The graph also has edges hidden to hidden.
    """

    @staticmethod
    def make_processor(settings: ModelSettings, graph: HeteroData, kernels: LayerKernels) -> nn.Module:
        """Return the processor."""
        assert isinstance(settings, GraphTransformerSettings)
        learnt, tiled = settings.edge_trainable_parameters.hidden2hidden, kernels.GraphAttention.reads_tiles
        edges = EdgeFeatures(graph, "hidden", "hidden", learnt, tiled=tiled)
        return Processor(settings.num_channels, edges, settings.processor, kernels)
