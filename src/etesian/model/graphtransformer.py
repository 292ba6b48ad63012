"""Model kind ``graphtransformer``: encoder, processor and decoder are made of graph-transformer blocks.

Names in the state dict beside those of :mod:`etesian.model.encoder_processor_decoder`: ``processor.edges.trainable``;
the processor's blocks are like those of the encoder, without ``norm_source``.
"""

from __future__ import annotations

from typing import Literal

import etesian.model.decoder
import etesian.model.encoder
import etesian.model.processor  # noqa: F401  # these register the kinds of the components
from etesian.schema.model import ModelSettings
from etesian.schema.registry import register


@register("model", "graphtransformer")
class GraphTransformerSettings(ModelSettings):
    """Section ``model`` of kind ``graphtransformer``."""

    kind: Literal["graphtransformer"] = "graphtransformer"
