"""Model kind ``pointwise``: the processor works on each hidden node by itself.

``x' = x + mlp(norm(x))``, block after block; no node hears of another but through encoder and decoder, which are those
of kind ``graphtransformer`` by default. Names in the state dict: ``processor.blocks.<i>.norm``,
``processor.blocks.<i>.mlp``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import LayerKernels
from etesian.model.block import Block
from etesian.schema.model import EdgeTrainableParameters, HeadlessSettings, ModelSettings, ProcessorSettings
from etesian.schema.registry import register


@register("processor", "pointwise")
class PointwiseProcessorSettings(HeadlessSettings, ProcessorSettings):
    """Section ``model.processor`` of kind ``pointwise``: an MLP on each hidden node."""

    can_be_shared: ClassVar[bool] = True
    kind: Literal["pointwise"] = "pointwise"

    def build(
        self, num_channels: int, graph: HeteroData, learnt: EdgeTrainableParameters, kernels: LayerKernels
    ) -> nn.Module:
        """Return the processor; the graph is not looked at."""
        return PointwiseProcessor(num_channels, self, kernels)


@register("model", "pointwise")
class PointwiseModelSettings(ModelSettings):
    """Section ``model`` of kind ``pointwise``."""

    component_kinds: ClassVar[dict[str, str]] = ModelSettings.component_kinds | {"processor": "pointwise"}
    kind: Literal["pointwise"] = "pointwise"


class PointwiseBlock(Block):
    """An MLP after a norm, with a residual."""

    def __init__(self, num_channels: int, settings: PointwiseProcessorSettings, kernels: LayerKernels) -> None:
        super().__init__()
        hidden = int(num_channels * settings.mlp_hidden_ratio)
        self.norm = kernels.LayerNorm(num_channels)
        self.mlp = kernels.MLP(num_channels, hidden, num_channels, layer_kernels=kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Map nodes [N, C] to the same shape."""
        updated: Tensor = x + self.mlp(self.norm(x))
        return updated


class PointwiseProcessor(nn.Module):
    """Blocks on each hidden node by itself."""

    def __init__(self, num_channels: int, settings: PointwiseProcessorSettings, kernels: LayerKernels) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PointwiseBlock(num_channels, settings, kernels) for _ in range(settings.num_layers))

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] to the same shape."""
        for block in self.blocks:
            x = block(x)
        return x
