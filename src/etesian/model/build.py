"""From settings, graph, fields and kernels to a model."""

from __future__ import annotations

from torch import nn
from torch_geometric.data import HeteroData

import etesian.model.kinds  # noqa: F401  # it registers the kinds
from etesian.errors import UserError, did_you_mean
from etesian.kernels.resolve import ComponentKernels
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.fields import ModelFields
from etesian.schema.model import ModelSettings
from etesian.schema.registry import kinds

__all__ = ["ModelFields", "build_model"]


def build_model(
    settings: ModelSettings, graph: HeteroData, fields: ModelFields, kernels: ComponentKernels
) -> nn.Module:
    """Build the model that the settings describe, on the CPU.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    graph : HeteroData
        See :class:`~etesian.model.encoder_processor_decoder.EncoderProcessorDecoder`.
    fields : ModelFields
        Variables and steps.
    kernels : ComponentKernels
        What :func:`etesian.kernels.resolve.resolve_kernels` returns.

    Raises
    ------
    UserError
        If the kind is unknown, or the settings ask for variables or steps that are not there.
    """
    known = kinds("model")
    if settings.kind not in known:
        raise UserError(
            f"unknown model kind {settings.kind!r}",
            where="model.kind",
            allowed=", ".join(known),
            mend=did_you_mean(settings.kind, known),
        )
    return EncoderProcessorDecoder(settings, graph, fields, kernels)
