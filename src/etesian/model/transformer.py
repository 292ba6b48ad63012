"""Model kind ``transformer``: the processor's blocks let hidden nodes attend to each other without edges.

A node attends to all nodes, or to those within a window of an order of the nodes. Encoder and decoder are those of
kind ``graphtransformer``. Names in the state dict beside those of :mod:`etesian.model.encoder_processor_decoder`:
``processor.blocks.<i>.`` with ``norm_attention``, ``query``, ``key``, ``value`` (no bias), ``query_norm`` and
``key_norm`` (with qk_norm), ``projection``, ``norm_mlp``, ``mlp``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import etesian.model.self_attention  # noqa: F401  # it registers the kind of the processor
from etesian.schema.model import ModelSettings
from etesian.schema.registry import register


@register("model", "transformer")
class TransformerSettings(ModelSettings):
    """Section ``model`` of kind ``transformer``."""

    component_kinds: ClassVar[dict[str, str]] = ModelSettings.component_kinds | {"processor": "transformer"}
    kind: Literal["transformer"] = "transformer"
