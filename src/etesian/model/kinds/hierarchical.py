"""Model kind ``hierarchical``: the processor goes down to coarser levels of hidden nodes and comes back up.

On each level but the coarsest::

    x  = blocks down(x)              on the edges of the level, if ``level_layers`` is not 0
    y  = to the next coarser level(x)    a block as in the encoder; with more channels
    y  = what the coarser levels make of y
    x' = x + back from there(y, x)       a block as in the decoder
    x' = blocks up(x')

On the coarsest level ``num_layers`` blocks work. Blocks are those of kind ``graphtransformer``. Names in the state
dict: ``processor.nodes.<l>.trainable``, ``processor.down.<l>``, ``processor.up.<l>``, ``processor.to_coarser.<l>``,
``processor.to_finer.<l>``, ``processor.coarsest``; inside as in processor, encoder and decoder of that kind.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.graph.levels import levels_of
from etesian.kernels.resolve import LayerKernels
from etesian.model.decoder import GraphTransformerDecoder, GraphTransformerDecoderSettings
from etesian.model.encoder import GraphTransformerEncoder, GraphTransformerEncoderSettings
from etesian.model.features import EdgeFeatures, NodeFeatures
from etesian.model.processor import GraphTransformerProcessorSettings, Processor
from etesian.schema.model import BlockSettings, EdgeTrainableParameters, ModelSettings, ProcessorSettings
from etesian.schema.registry import register


@register("processor", "hierarchical")
class HierarchicalProcessorSettings(BlockSettings, ProcessorSettings):
    """Section ``model.processor`` of kind ``hierarchical``: blocks on several levels of hidden nodes."""

    edge_sets: ClassVar[tuple[str, ...]] = ("hidden2hidden", "between_levels")
    has_levels: ClassVar[bool] = True
    kind: Literal["hierarchical"] = "hierarchical"
    num_layers: int = Field(default=16, ge=1, le=1024)
    """Blocks on the coarsest level."""
    level_layers: int = Field(default=1, ge=0, le=1024)
    """Blocks on each finer level on the way down, and as many on the way up."""
    channel_growth: int = Field(default=2, ge=1, le=16)
    """Channels of a level, in channels of the next finer one."""
    learnt_of_nodes: int = Field(default=8, ge=0)
    """Learnt features of a node of a coarser level; ``model.node_trainable_parameters.hidden`` has those of the
    finest."""
    coarsest_skip: bool = True
    """Add what comes to the coarsest level to what its blocks make of it."""

    def build(
        self, num_channels: int, graph: HeteroData, learnt: EdgeTrainableParameters, kernels: LayerKernels
    ) -> nn.Module:
        """Return the processor; the graph has coarser levels, and edges on and between the levels."""
        return HierarchicalProcessor(num_channels, graph, learnt, self, kernels)

    def small(self) -> HierarchicalProcessorSettings:
        """Return the settings with as few blocks as have every module."""
        return self.model_copy(update={"num_layers": 1, "level_layers": min(1, self.level_layers)})

    def blocks(self) -> dict[str, Any]:
        """Return the keys that the blocks of every level have."""
        return {name: getattr(self, name) for name in BlockSettings.model_fields if name != "kind"}


@register("model", "hierarchical")
class HierarchicalModelSettings(ModelSettings):
    """Section ``model`` of kind ``hierarchical``."""

    component_kinds: ClassVar[dict[str, str]] = ModelSettings.component_kinds | {"processor": "hierarchical"}
    kind: Literal["hierarchical"] = "hierarchical"


class HierarchicalProcessor(nn.Module):
    """Blocks on several levels of hidden nodes.

    Parameters
    ----------
    num_channels : int
        Width of the hidden nodes of the finest level.
    graph : HeteroData
        With nodes ``hidden``, ``hidden_2`` and so on, edges on each level, and to the next one and back.
    learnt : EdgeTrainableParameters
        Learnt features; every set of blocks has its own.
    settings : HierarchicalProcessorSettings
        Section ``model.processor``.
    kernels : LayerKernels
        Kernels of the processor.
    """

    def __init__(
        self,
        num_channels: int,
        graph: HeteroData,
        learnt: EdgeTrainableParameters,
        settings: HierarchicalProcessorSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        names = levels_of(graph)
        widths = [num_channels * settings.channel_growth**level for level in range(len(names))]
        self.skip = settings.coarsest_skip

        def edges(src: str, dst: str) -> EdgeFeatures:
            count = learnt.hidden2hidden if src == dst else learnt.between_levels
            return EdgeFeatures(graph, src, dst, count or 0, tiled=kernels.GraphAttention.reads_tiles)

        def blocks(level: int, layers: int) -> Processor:
            own = GraphTransformerProcessorSettings(**settings.blocks(), num_layers=layers)
            return Processor(widths[level], edges(names[level], names[level]), own, kernels)

        finer = range(len(names) - 1 if settings.level_layers else 0)
        self.nodes = nn.ModuleList(NodeFeatures(graph[name].x, settings.learnt_of_nodes) for name in names[1:])
        self.down = nn.ModuleList(blocks(level, settings.level_layers) for level in finer)
        self.up = nn.ModuleList(blocks(level, settings.level_layers) for level in finer)
        self.coarsest = blocks(len(names) - 1, settings.num_layers)
        self.to_coarser, self.to_finer = nn.ModuleList(), nn.ModuleList()
        encoding = GraphTransformerEncoderSettings(**settings.blocks())
        decoding = GraphTransformerDecoderSettings(**settings.blocks())
        for level, (fine, coarse) in enumerate(pairwise(names)):
            narrow, wide = widths[level : level + 2]
            features: Any = self.nodes[level]
            self.to_coarser.append(
                GraphTransformerEncoder(narrow, features.dim, wide, edges(fine, coarse), encoding, kernels)
            )
            self.to_finer.append(
                GraphTransformerDecoder(narrow, narrow, wide, edges(coarse, fine), decoding, kernels, gain=1.0)
            )

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes of the finest level [(copies N_hidden), C] to the same shape."""
        return self._level(x, 0, copies)

    def _level(self, x: Tensor, level: int, copies: int) -> Tensor:
        """Return what a level and those below it make of its nodes, [(copies N), C]."""
        if level == len(self.nodes):
            return self.coarsest(x, copies) + x if self.skip else self.coarsest(x, copies)
        if len(self.down):
            x = self.down[level](x, copies)
        x, coarser = self.to_coarser[level](x, self.nodes[level](copies), copies)
        coarser = self._level(coarser, level + 1, copies)
        x = x + self.to_finer[level](coarser, x, copies)
        return self.up[level](x, copies) if len(self.up) else x
