"""Section ``model``: what all kinds share; a kind of model or of component adds its own keys beside its code."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from etesian.schema.base import Section
from etesian.schema.compilation import CompileEntry
from etesian.schema.registry import kinds

KernelMapping = dict[str, dict[str, Any]]
"""Slot to ``{_target_: dotted.path, **arguments}``; ``_compile_`` holds the options of its compilation, or true."""

COMPONENTS = ("encoder", "processor", "decoder")

PROCESSOR_EDGES = ("hidden2hidden", "between_levels")
"""Keys of ``model.edge_trainable_parameters`` that not every processor has."""

CheckpointingPolicy = Literal["none", "full", "selective", "offload"]


def _named_policy(value: Any) -> Any:
    """Return the policy that true or false means; anything else as it is."""
    return {True: "full", False: "none"}[value] if isinstance(value, bool) else value


class ComponentSettings(Section):
    """What encoder, processor and decoder of every kind have."""

    can_be_shared: ClassVar[bool] = False
    """Whether several processes may share it, a part of the nodes each."""

    kind: str
    """What the component is made of; left out: as the kind of the model says."""
    mlp_hidden_ratio: float = Field(default=4.0, gt=0, le=1024)
    """Hidden channels of the MLP, in channels of the model."""
    gradient_checkpointing: Annotated[CheckpointingPolicy, BeforeValidator(_named_policy)] = "none"
    """What a block keeps for the backward pass: all of it, nothing (true means that too), the results of matrix
    products and of attention, or all of it in the host's memory."""
    layer_kernels: KernelMapping = {}
    """Slots that this component fills otherwise than ``model.layer_kernels`` does."""

    def build(self, *args: Any, **keywords: Any) -> Any:
        """Return the component; each kind has its own.

        Encoder: ``(data_dim, hidden_dim, num_channels, edges, kernels)``. Processor: ``(num_channels, graph, learnt,
        kernels)``. Decoder: ``(data_dim, num_outputs, num_channels, edges, kernels, embedded=...)``.
        """
        raise NotImplementedError(f"{type(self).__name__} builds nothing")

    def uses(self, slot: str) -> bool:
        """Tell whether the component has layers that a slot of ``layer_kernels`` makes."""
        return slot in ("Linear", "LayerNorm", "Activation", "MLP")

    def activates(self) -> bool:
        """Tell whether the slot ``Activation`` is called by others than the MLP."""
        return False

    def attention_window(self) -> int | None:
        """Return what the slot ``Attention`` is built with as ``window_size``, where it is used."""
        return None


class HeadlessSettings(ComponentSettings):
    """A component without attention."""

    num_heads: ClassVar[int] = 1
    qk_norm: ClassVar[bool] = False
    fuse_projections: ClassVar[bool] = False


class BlockSettings(ComponentSettings):
    """A block with attention; the same keys for encoder, processor and decoder."""

    num_heads: int = Field(default=16, ge=1)
    """Attention heads; divides ``model.num_channels``."""
    qk_norm: bool = False
    """Normalise queries and keys, by the slots ``QueryNorm`` and ``KeyNorm``."""
    fuse_projections: bool = False
    """Compute the queries, keys and values that come from one input in one matrix product, with the weights of the
    separate layers side by side; with graph attention the node's own projection too. Needs a plain ``Linear``."""

    def uses(self, slot: str) -> bool:
        """Tell whether the component has layers that a slot of ``layer_kernels`` makes."""
        if slot in ("QueryNorm", "KeyNorm"):
            return self.qk_norm
        return slot == "GraphAttention" or super().uses(slot)


class MapperSettings(ComponentSettings):
    """Encoder or decoder: a block from one set of nodes to another."""

    embeds_data: ClassVar[bool] = False
    """Whether an encoder hands the data nodes on with ``model.num_channels`` channels, and not as they came."""

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


class ProcessorSettings(ComponentSettings):
    """The processor: blocks on the hidden nodes, one after the other."""

    edge_sets: ClassVar[tuple[str, ...]] = ()
    """The keys of ``model.edge_trainable_parameters`` for the edges that it goes along."""
    has_levels: ClassVar[bool] = False
    """Whether it works on several levels of hidden nodes."""

    num_layers: int = Field(default=16, ge=1, le=1024)
    """Blocks."""

    def small(self) -> ProcessorSettings:
        """Return the settings with as few blocks as have every module."""
        return self.model_copy(update={"num_layers": 1})


class NodeTrainableParameters(Section):
    """Learnt features a node."""

    data: int = Field(default=8, ge=0)
    """A data node."""
    hidden: int = Field(default=8, ge=0)
    """A hidden node."""


LEARNT_EDGE_FEATURES = 8
"""Learnt features of an edge where the config leaves them out."""


class EdgeTrainableParameters(Section):
    """Learnt features an edge."""

    data2hidden: int = Field(default=LEARNT_EDGE_FEATURES, ge=0)
    """An encoder edge."""
    hidden2hidden: int | None = Field(default=None, ge=0)
    """A processor edge; left out where the processor goes along none, else 8 if it is left out."""
    between_levels: int | None = Field(default=None, ge=0)
    """An edge from a level of hidden nodes to the next one, or back; likewise."""
    hidden2data: int = Field(default=LEARNT_EDGE_FEATURES, ge=0)
    """A decoder edge."""


class ResidualSettings(Section):
    """What the model's output is added to for prognostic variables: the input at ``step``, or nothing."""

    kind: Literal["skip", "none"] = "skip"
    """``skip`` adds the input, ``none`` nothing."""
    step: int = Field(default=-1, le=-1)
    """Which input step, counted from the latest (-1)."""


class ModelSettings(Section):
    """Keys of every model kind."""

    component_kinds: ClassVar[dict[str, str]] = dict.fromkeys(COMPONENTS, "graphtransformer")
    """The kind of each component that does not say its own."""

    kind: str
    """Which model: the kind of its processor, and of the components that do not say their own."""
    num_channels: int = Field(ge=1)
    """Channels of every node inside the model."""
    layer_kernels: KernelMapping = {}
    """Kernel of each slot: ``_target_`` and its arguments; with ``_compile_`` its modules are compiled."""
    compile: list[CompileEntry] = []
    """What is compiled; a preset of the group ``model/compile``."""
    encoder: SerializeAsAny[MapperSettings] = Field(default_factory=dict)  # type: ignore[assignment]
    """From the data to the hidden nodes; a kind that is registered."""
    processor: SerializeAsAny[ProcessorSettings] = Field(default_factory=dict)  # type: ignore[assignment]
    """On the hidden nodes; a kind that is registered."""
    decoder: SerializeAsAny[MapperSettings] = Field(default_factory=dict)  # type: ignore[assignment]
    """From the hidden nodes to the data; a kind that is registered."""
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
        return bool(getattr(self, component).uses(slot))

    def window_size(self, component: str) -> int | None:
        """Return what the slot ``Attention`` is built with as ``window_size`` in a component that uses it."""
        window: int | None = getattr(self, component).attention_window()
        return window

    @field_validator(*COMPONENTS, mode="before")
    @classmethod
    def _component_of_its_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Make a component's section from a mapping, by its kind."""
        name = str(info.field_name)
        if not isinstance(value, dict):
            return value
        section = kinds(name).get(value.get("kind", cls.component_kinds[name]))
        return value if section is None else section.model_validate(value)

    @field_validator("edge_trainable_parameters", mode="before")
    @classmethod
    def _edges_that_there_are(cls, value: Any, info: ValidationInfo) -> Any:
        """Put in the default of the edges that the processor goes along."""
        processor = info.data.get("processor")
        if processor is None:
            return value
        if isinstance(value, EdgeTrainableParameters):
            value = value.model_dump(exclude_unset=True)
        if isinstance(value, dict):
            return dict.fromkeys(processor.edge_sets, LEARNT_EDGE_FEATURES) | value
        return value

    @model_validator(mode="after")
    def _named_after_its_processor(self) -> ModelSettings:
        own = self.processor.kind
        if self.kind != own:
            raise ValueError(
                f"model.kind={self.kind!r}, but model.processor.kind={own!r}: a model has the kind of its processor; "
                f"model/processor={self.kind} or model/processor={own} chooses both"
            )
        return self

    @model_validator(mode="after")
    def _no_other_edges(self) -> ModelSettings:
        learnt, kind = self.edge_trainable_parameters, self.processor.kind
        for name in PROCESSOR_EDGES:
            count, goes = getattr(learnt, name), name in self.processor.edge_sets
            key = f"model.edge_trainable_parameters.{name}"
            if goes and count is None:
                raise ValueError(f"{key}=null, but model.processor.kind={kind!r} goes along these edges")
            if not goes and count is not None:
                raise ValueError(
                    f"{key}={count} does nothing with model.processor.kind={kind!r}, which goes along no such edges"
                )
        return self

    @model_validator(mode="after")
    def _heads_divide_channels(self) -> ModelSettings:
        for name in COMPONENTS:
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
