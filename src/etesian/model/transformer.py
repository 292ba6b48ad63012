"""Model kind ``transformer``: the processor's blocks let hidden nodes attend to each other without edges.

A node attends to all nodes, or to those within a window of an order of the nodes. Encoder and decoder are those of
kind ``graphtransformer``. Names in the state dict beside those of :mod:`etesian.model.encoder_processor_decoder`:
``processor.blocks.<i>.`` with ``norm_attention``, ``query``, ``key``, ``value`` (no bias), ``query_norm`` and
``key_norm`` (with qk_norm), ``projection``, ``norm_mlp``, ``mlp``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import LayerKernels
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.self_attention import TransformerProcessor, latitude_order
from etesian.schema.model import ModelSettings, ProcessorSettings
from etesian.schema.registry import register


class TransformerProcessorSettings(ProcessorSettings):
    """The processor: blocks of attention among the hidden nodes, one after the other."""

    window_size: int | None = Field(default=512, ge=0)
    """How many places of the order a node sees to either side; null: all nodes see all."""
    node_order: Literal["latitude", "graph"] = "latitude"
    """The order that the window is over: ``latitude`` goes around the globe in rows from north to south, ``graph`` is
    that of the graph file. Without a window it does not matter."""


@register("model", "transformer")
class TransformerSettings(ModelSettings):
    """Section ``model`` of kind ``transformer``."""

    kind: Literal["transformer"] = "transformer"
    processor: TransformerProcessorSettings = TransformerProcessorSettings()

    def uses(self, component: str, slot: str) -> bool:
        """Tell whether a component has layers that a slot of ``layer_kernels`` makes."""
        if component == "processor" and slot in ("Attention", "GraphAttention"):
            return slot == "Attention"
        return super().uses(component, slot)

    def window_size(self, component: str) -> int | None:
        """Return what the slot ``Attention`` is built with as ``window_size`` in a component that uses it."""
        return self.processor.window_size if component == "processor" else super().window_size(component)


class Transformer(EncoderProcessorDecoder):
    """The processor lets each hidden node attend to all, or to those near it in an order.

    Edges hidden to hidden are not needed, and not looked at.
    """

    @staticmethod
    def make_processor(settings: ModelSettings, graph: HeteroData, kernels: LayerKernels) -> nn.Module:
        """Return the processor."""
        assert isinstance(settings, TransformerSettings)
        chosen, latlons = settings.processor, graph["hidden"].x
        windowed = chosen.window_size is not None and chosen.window_size < latlons.shape[0] - 1
        order = latitude_order(latlons) if windowed and chosen.node_order == "latitude" else None
        return TransformerProcessor(settings.num_channels, order, chosen, chosen.window_size, kernels)
