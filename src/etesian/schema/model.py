"""Section ``model``: what all kinds share; a kind adds its own keys beside its code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from etesian.schema.base import Section
from etesian.schema.compilation import CompileEntry

KernelMapping = dict[str, dict[str, Any]]
"""Slot to ``{_target_: dotted.path, **arguments}``; ``_compile_`` holds the options of its compilation, or true."""

CheckpointingPolicy = Literal["none", "full", "selective", "offload"]


def _named_policy(value: Any) -> Any:
    """Return the policy that true or false means; anything else as it is."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


class BlockSettings(Section):
    """A graph-transformer block; the same keys for encoder, processor and decoder."""

    num_heads: int = Field(default=16, ge=1)
    """Attention heads; divides ``model.num_channels``."""
    mlp_hidden_ratio: float = Field(default=4.0, gt=0, le=1024)
    """Hidden channels of the MLP, in channels of the model."""
    qk_norm: bool = False
    """Normalise queries and keys, by the slots ``QueryNorm`` and ``KeyNorm``."""
    fuse_projections: bool = False
    """Compute the queries, keys and values that come from one input in one matrix product, with the weights of the
    separate layers side by side; with graph attention the node's own projection too. Needs a plain ``Linear``."""
    gradient_checkpointing: Annotated[CheckpointingPolicy, BeforeValidator(_named_policy)] = "none"
    """What a block keeps for the backward pass: all of it, nothing (true means that too), the results of matrix
    products and of attention, or all of it in the host's memory."""
    layer_kernels: KernelMapping = {}
    """Slots that this component fills otherwise than ``model.layer_kernels`` does."""


class MapperSettings(BlockSettings):
    """Encoder or decoder: a block from one set of nodes to another."""

    num_chunks: int = Field(default=1, ge=1, le=1024)
    """Parts of the destination nodes that are worked on one after the other: less memory at a time, the same result.
    With more than one, ``gradient_checkpointing`` has to be another than none: else the device would keep what all
    chunks compute for the backward pass."""

    @model_validator(mode="after")
    def _chunks_are_recomputed(self) -> MapperSettings:
        if self.num_chunks > 1 and self.gradient_checkpointing == "none":
            raise ValueError(
                f"num_chunks={self.num_chunks} saves nothing with gradient_checkpointing=none: what the chunks "
                "compute would all be kept for the backward pass; full, selective and offload save it"
            )
        return self


class ProcessorSettings(BlockSettings):
    """The processor: blocks on the hidden nodes, one after the other."""

    num_layers: int = Field(default=16, ge=1, le=1024)
    """Blocks."""


class NodeTrainableParameters(Section):
    """Learnt features a node."""

    data: int = Field(default=8, ge=0)
    """A data node."""
    hidden: int = Field(default=8, ge=0)
    """A hidden node."""


class EdgeTrainableParameters(Section):
    """Learnt features an edge."""

    data2hidden: int = Field(default=8, ge=0)
    """An encoder edge."""
    hidden2data: int = Field(default=8, ge=0)
    """A decoder edge."""


class ResidualSettings(Section):
    """What the model's output is added to for prognostic variables: the input at ``step``, or nothing."""

    kind: Literal["skip", "none"] = "skip"
    """``skip`` adds the input, ``none`` nothing."""
    step: int = Field(default=-1, le=-1)
    """Which input step, counted from the latest (-1)."""


class ModelSettings(Section):
    """Keys of every model kind."""

    kind: str
    """Which model."""
    num_channels: int = Field(ge=1)
    """Channels of every node inside the model."""
    layer_kernels: KernelMapping = {}
    """Kernel of each slot: ``_target_`` and its arguments; with ``_compile_`` its modules are compiled."""
    compile: list[CompileEntry] = []
    """What is compiled; a preset of the group ``model/compile``."""
    encoder: MapperSettings = MapperSettings()
    """From the data to the hidden nodes."""
    processor: ProcessorSettings = ProcessorSettings()
    """On the hidden nodes."""
    decoder: MapperSettings = MapperSettings()
    """From the hidden nodes to the data."""
    latent_skip: bool = True
    """Add the encoder's output to the processor's."""
    node_trainable_parameters: NodeTrainableParameters = NodeTrainableParameters()
    """Learnt features of nodes."""
    edge_trainable_parameters: EdgeTrainableParameters = EdgeTrainableParameters()
    """Learnt features of edges."""
    residual: ResidualSettings = ResidualSettings()
    """What the output is added to."""
    bounding: list[SerializeAsAny[Section]] = []
    """Bounds of outputs, applied in order; each a registered kind (``relu``, ``fraction``, ``hardtanh``)."""

    def uses(self, component: str, slot: str) -> bool:
        """Tell whether a component has layers that a slot of ``layer_kernels`` makes."""
        if slot in ("QueryNorm", "KeyNorm"):
            return bool(getattr(self, component).qk_norm)
        return slot != "Attention"

    def window_size(self, component: str) -> int | None:
        """Return what the slot ``Attention`` is built with as ``window_size`` in a component that uses it."""
        return None

    @model_validator(mode="after")
    def _heads_divide_channels(self) -> ModelSettings:
        for name in ("encoder", "processor", "decoder"):
            heads = getattr(self, name).num_heads
            if self.num_channels % heads:
                raise ValueError(
                    f"model.{name}.num_heads={heads} does not divide model.num_channels={self.num_channels}"
                )
            if int(self.num_channels * getattr(self, name).mlp_hidden_ratio) < 1:
                raise ValueError(
                    f"model.{name}.mlp_hidden_ratio={getattr(self, name).mlp_hidden_ratio} leaves no hidden channel"
                    f" of model.num_channels={self.num_channels}"
                )
        return self
