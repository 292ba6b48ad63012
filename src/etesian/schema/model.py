"""Section ``model``: what all kinds share; a kind adds its own keys beside its code."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from etesian.schema.base import Section

KernelMapping = dict[str, dict[str, Any]]
"""Slot to ``{_target_: dotted.path, **arguments}``."""


class BlockSettings(Section):
    """A graph-transformer block; the same keys for encoder, processor and decoder."""

    num_heads: int = Field(default=16, ge=1)
    mlp_hidden_ratio: float = Field(default=4.0, gt=0)
    qk_norm: bool = False
    gradient_checkpointing: bool = False
    """Recompute the activations of each block in the backward pass instead of keeping them."""
    layer_kernels: KernelMapping = {}
    """Slots that this component fills otherwise than ``model.layer_kernels`` does."""


class ProcessorSettings(BlockSettings):
    """The processor: blocks on the hidden nodes, one after the other."""

    num_layers: int = Field(default=16, ge=1)


class NodeTrainableParameters(Section):
    """Learnt features a node."""

    data: int = Field(default=8, ge=0)
    hidden: int = Field(default=8, ge=0)


class EdgeTrainableParameters(Section):
    """Learnt features an edge."""

    data2hidden: int = Field(default=8, ge=0)
    hidden2hidden: int = Field(default=8, ge=0)
    hidden2data: int = Field(default=8, ge=0)


class ResidualSettings(Section):
    """What the model's output is added to for prognostic variables: the input at ``step``, or nothing."""

    kind: Literal["skip", "none"] = "skip"
    step: int = Field(default=-1, le=-1)
    """Which input step, counted from the latest (-1)."""


class ModelSettings(Section):
    """Keys of every model kind."""

    kind: str
    num_channels: int = Field(ge=1)
    layer_kernels: KernelMapping = {}
    encoder: BlockSettings = BlockSettings()
    processor: ProcessorSettings = ProcessorSettings()
    decoder: BlockSettings = BlockSettings()
    latent_skip: bool = True
    """Add the encoder's output to the processor's."""
    node_trainable_parameters: NodeTrainableParameters = NodeTrainableParameters()
    edge_trainable_parameters: EdgeTrainableParameters = EdgeTrainableParameters()
    residual: ResidualSettings = ResidualSettings()
    bounding: list[SerializeAsAny[Section]] = []
    """Bounds of outputs, applied in order; each a registered kind (``relu``, ``fraction``, ``hardtanh``)."""

    @model_validator(mode="after")
    def _heads_divide_channels(self) -> ModelSettings:
        for name in ("encoder", "processor", "decoder"):
            heads = getattr(self, name).num_heads
            if self.num_channels % heads:
                raise ValueError(
                    f"model.{name}.num_heads={heads} does not divide model.num_channels={self.num_channels}"
                )
        return self
