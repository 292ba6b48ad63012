"""The processor: blocks on the hidden nodes, one after the other."""

from __future__ import annotations

from torch import Tensor, nn

from etesian.kernels.resolve import LayerKernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.exchange import Halo
from etesian.model.features import EdgeFeatures
from etesian.schema.model import ProcessorSettings


class Processor(nn.Module):
    """Blocks among the hidden nodes.

    Parameters
    ----------
    num_channels : int
        Width of the hidden nodes.
    edges : EdgeFeatures
        Edges among the hidden nodes; all blocks share their learnt features.
    settings : ProcessorSettings
        Section ``model.processor``.
    kernels : LayerKernels
        Kernels of the processor.
    """

    def __init__(
        self, num_channels: int, edges: EdgeFeatures, settings: ProcessorSettings, kernels: LayerKernels
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
