"""The kernels that are known for each slot: those of the package, and those of libraries that fit a slot as they are.

Within a family the arguments make the constants equal, so that the kernels of one family are interchangeable. To be
listed here says nothing about being installed, or about running on this device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class CatalogEntry:
    """One kernel that may fill a slot.

    Attributes
    ----------
    target : str
        Dotted path.
    arguments : mapping
        What the config has to say beside it.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def _entry(target: str, **arguments: Any) -> CatalogEntry:
    return CatalogEntry(target, MappingProxyType(arguments))


LAYER_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6

_NORMS = (
    _entry("torch.nn.LayerNorm", eps=LAYER_NORM_EPS),
    _entry("etesian.kernels.norms.AutocastLayerNorm", eps=LAYER_NORM_EPS),
    _entry("etesian.kernels.liger.LigerLayerNorm", eps=LAYER_NORM_EPS),
    _entry("transformer_engine.pytorch.LayerNorm", eps=LAYER_NORM_EPS),
    _entry("torch.nn.RMSNorm", eps=RMS_NORM_EPS),
    _entry("etesian.kernels.norms.AutocastRMSNorm", eps=RMS_NORM_EPS),
    _entry("liger_kernel.transformers.rms_norm.LigerRMSNorm", eps=RMS_NORM_EPS),
    _entry("transformer_engine.pytorch.RMSNorm", eps=RMS_NORM_EPS),
)

_HEAD_NORMS = (
    _entry("etesian.kernels.norms.AutocastLayerNorm", eps=LAYER_NORM_EPS, bias=False),
    _entry("torch.nn.LayerNorm", eps=LAYER_NORM_EPS, bias=False),
    _entry("torch.nn.RMSNorm", eps=RMS_NORM_EPS),
    _entry("liger_kernel.transformers.rms_norm.LigerRMSNorm", eps=RMS_NORM_EPS),
)

KERNELS: Mapping[str, tuple[CatalogEntry, ...]] = MappingProxyType(
    {
        "Linear": (_entry("torch.nn.Linear"), _entry("transformer_engine.pytorch.Linear")),
        "LayerNorm": _NORMS,
        "Activation": (
            _entry("torch.nn.GELU"),
            _entry("torch.nn.GELU", approximate="tanh"),
            _entry("torch.nn.SiLU"),
            _entry("torch.nn.ReLU"),
        ),
        "QueryNorm": _HEAD_NORMS,
        "KeyNorm": _HEAD_NORMS,
        "MLP": (
            _entry("etesian.kernels.mlp.MLP"),
            _entry("etesian.kernels.glu.GLU"),
            _entry("etesian.kernels.glu.SwiGLU"),
            _entry("etesian.kernels.liger.LigerSwiGLU"),
            _entry("etesian.kernels.glu.GeGLU"),
            _entry("etesian.kernels.glu.GeGLU", approximate="tanh"),
            _entry("etesian.kernels.liger.LigerGeGLU"),
            _entry("etesian.kernels.glu.ReGLU"),
        ),
        "GraphAttention": (
            _entry("etesian.kernels.factored.FactoredGraphAttention"),
            _entry("etesian.kernels.triton_kernels.attention.TritonGraphAttention"),
            _entry("etesian.kernels.pyg.PygGraphAttention"),
            _entry("etesian.kernels.reference.ReferenceGraphAttention"),
        ),
        "Attention": (
            _entry("etesian.kernels.attention.sdpa.ScaledDotProductAttention"),
            _entry("etesian.kernels.attention.flex.FlexAttention"),
            _entry("etesian.kernels.attention.flash.FlashAttention"),
            _entry("etesian.kernels.attention.reference.ReferenceAttention"),
        ),
    }
)
"""Kernels by slot; a slot that is not here has no known kernel but its default."""
