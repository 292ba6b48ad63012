"""The processor of kind ``graphtransformer``: blocks along the hidden edges, one after the other."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.exchange import Halo
from etesian.model.features import EdgeFeatures
from etesian.schema.model import BlockSettings, EdgeTrainableParameters, ProcessorSettings
from etesian.schema.registry import register


@register("processor", "graphtransformer")
class GraphTransformerProcessorSettings(BlockSettings, ProcessorSettings):
    """Section ``model.processor`` of kind ``graphtransformer``: hidden nodes attend to their neighbours."""

    edge_sets: ClassVar[tuple[str, ...]] = ("hidden2hidden",)
    can_be_shared: ClassVar[bool] = True
    kind: Literal["graphtransformer"] = "graphtransformer"

    def build(
        self, num_channels: int, graph: HeteroData, learnt: EdgeTrainableParameters, kernels: LayerKernels
    ) -> nn.Module:
        """Return the processor; the graph has edges hidden to hidden."""
        tiled = kernels.GraphAttention.reads_tiles
        edges = EdgeFeatures(graph, "hidden", "hidden", learnt.hidden2hidden or 0, tiled=tiled)
        return Processor(num_channels, edges, self, kernels)


class Processor(nn.Module):
    """Blocks among the hidden nodes.

    Parameters
    ----------
    num_channels : int
        Width of the hidden nodes.
    edges : EdgeFeatures
        Edges among the hidden nodes; all blocks share their learnt features.
    settings : GraphTransformerProcessorSettings
        Section ``model.processor``.
    kernels : LayerKernels
        Kernels of the processor.
    """

    def __init__(
        self,
        num_channels: int,
        edges: EdgeFeatures,
        settings: GraphTransformerProcessorSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.edges = edges
        self.blocks = nn.ModuleList(
            GraphTransformerBlock(num_channels, edges.dim, settings, kernels, bipartite=False)
            for _ in range(settings.num_layers)
        )
        self.halo: Halo | None = None  # where processes share the model

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] to the same shape."""
        edge_attr, edges = self.edges(copies)
        for block in self.blocks:
            source = None if self.halo is None else self.halo(x, copies)
            x = block(source, x, edge_attr, edges)  # [(copies N_hidden), C]
        return x
