"""Kernels that note each of their calls, so that a test sees what runs through the mapping and what does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from etesian.kernels.attention.sdpa import ScaledDotProductAttention
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.families import register_family
from etesian.kernels.mlp import MLP


class Marker:
    """Mixin: counts the calls of a module, and how deep in such modules the program is."""

    depth = 0
    calls = 0

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        self.calls += 1
        Marker.depth += 1
        try:
            return super().__call__(*args, **kwargs)
        finally:
            Marker.depth -= 1


class MarkerLinear(Marker, nn.Linear):
    pass


class MarkerLayerNorm(Marker, nn.LayerNorm):
    pass


class MarkerHeadNorm(Marker, nn.LayerNorm):
    pass


class MarkerActivation(Marker, nn.SiLU):
    pass


class MarkerMLP(Marker, MLP):
    pass


class MarkerGraphAttention(Marker, FactoredGraphAttention):
    pass


class MarkerAttention(Marker, ScaledDotProductAttention):
    pass


class DoublingLinear(nn.Linear):
    """Doubles its result. Said to be of the family ``linear``, so that it is taken everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Plain:
    """A class that is no module."""


class OwnLinear(nn.Linear):
    """A subclass of a plain linear layer, which may compute anything."""


class ScaledNorm(nn.Module):
    """A norm that can't do without an argument of its own."""

    def __init__(self, width: int, *, scale: float) -> None:
        super().__init__()
        if scale < 0:
            raise ValueError("scale is negative")
        self.weight = nn.Parameter(torch.full((width,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def make_norm(width: int, eps: float = 1e-5) -> nn.LayerNorm:
    """A function that is annotated to return a module."""
    return nn.LayerNorm(width, eps)


def make_untold(width: int):
    """A function without annotation; calling it would be a mistake."""
    raise AssertionError("called")


def make_number(width: int) -> int:
    """A function that makes no module."""
    raise AssertionError("called")


def make_liar(width: int) -> nn.Module:
    """A function that does not return what its annotation says."""
    return width  # type: ignore[return-value]


def make_unknown(width: int) -> "NoSuchName":  # noqa: F821, UP037
    """A function whose annotation names nothing."""
    raise AssertionError("called")


an_instance: Callable = nn.GELU()

register_family("marker_kernels.MarkerLinear", "linear")
register_family("marker_kernels.DoublingLinear", "linear")

MAPPING = {
    "Linear": {"_target_": "marker_kernels.MarkerLinear"},
    "LayerNorm": {"_target_": "marker_kernels.MarkerLayerNorm"},
    "Activation": {"_target_": "marker_kernels.MarkerActivation"},
    "QueryNorm": {"_target_": "marker_kernels.MarkerHeadNorm"},
    "KeyNorm": {"_target_": "marker_kernels.MarkerHeadNorm"},
    "MLP": {"_target_": "marker_kernels.MarkerMLP"},
    "GraphAttention": {"_target_": "marker_kernels.MarkerGraphAttention"},
    "Attention": {"_target_": "marker_kernels.MarkerAttention"},
}
