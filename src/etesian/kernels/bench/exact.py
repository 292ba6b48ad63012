"""What a kernel should compute: its family's mathematics in float64, with the parameters of the kernel."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from etesian.kernels.constants import DTYPE_EPSILON, UNKNOWN
from etesian.kernels.families import GATED_MLPS, family_named
from etesian.kernels.interchange import find, settled
from etesian.kernels.record import KernelRecord
from etesian.kernels.reference import ReferenceGraphAttention


class NoReference(Exception):
    """There is nothing to compare a kernel with; says why."""


class ExactAttention(nn.Module):
    """Attention of some queries to some keys, given the positions of the first of each."""

    def __init__(self, window_size: int | None) -> None:
        super().__init__()
        self.window_size = window_size

    def forward(self, query: Tensor, key: Tensor, value: Tensor, first_query: int, first_key: int) -> Tensor:
        """Attend; see :data:`etesian.kernels.slots.ATTENTION_CALL`."""
        score = query @ key.mT / query.shape[-1] ** 0.5
        if self.window_size is not None:
            here = torch.arange(first_query, first_query + query.shape[2], device=query.device)
            there = torch.arange(first_key, first_key + key.shape[2], device=query.device)
            score = score.masked_fill((here[:, None] - there).abs() > self.window_size, -torch.inf)
        return score.softmax(-1) @ value


def exact_layer(record: KernelRecord, layer: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, str]:
    """Return the reference of a built layer in float64, and its name.

    A kernel of a family whose formula is not known is compared with itself.

    Parameters
    ----------
    record : KernelRecord
        What the layer is: its family and constants.
    layer : nn.Module
        The layer.
    dtype : torch.dtype
        Of its input: the eps of some kernels is the machine epsilon of that.

    Raises
    ------
    NoReference
        If a constant is not known, the parameters of the two do not have the same names, or the layer has no form in
        float64.
    """
    if record.family == "graph_attention":
        attention: Any = layer
        return ReferenceGraphAttention(attention.num_heads, attention.head_channels), "ReferenceGraphAttention"
    if record.family == "attention":
        attention = layer
        return ExactAttention(attention.window_size), "attention"
    parameters = dict(layer.named_parameters())
    exact = _plain(record, parameters, layer, dtype)
    if exact is None:
        return _itself(layer), f"{type(layer).__name__} itself"
    exact = exact.double()
    own = dict(exact.named_parameters())
    if own.keys() != parameters.keys():
        raise NoReference(f"its parameters are {', '.join(parameters) or 'none'}, those of its family {', '.join(own)}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(parameters[name])
    return exact, type(exact).__name__


def _plain(
    record: KernelRecord, parameters: Mapping[str, Tensor], layer: nn.Module, dtype: torch.dtype
) -> nn.Module | None:
    """Return the layer of torch with the mathematics and the sizes of another; None where there is none."""
    constants = settled(record)
    if record.family == "linear":
        outputs, inputs = parameters["weight"].shape
        return nn.Linear(inputs, outputs, bias="bias" in parameters)
    if record.family in GATED_MLPS:
        (double, inputs), outputs = parameters["linear_in.weight"].shape, parameters["linear_out.weight"].shape[0]
        linears = SimpleNamespace(Linear=partial(nn.Linear, bias="linear_in.bias" in parameters))
        family = family_named(record.family)
        assert family is not None
        assert family.reference is not None
        return find(family.reference)(inputs, double // 2, outputs, linears, **constants)
    if record.family not in ("layer_norm", "rms_norm"):
        return None
    if constants.get("weight_offset", 0.0) != 0.0 or constants["eps"] == UNKNOWN:
        raise NoReference("its constants are not those of a norm of torch, or not known")
    eps = torch.finfo(dtype).eps if constants["eps"] == DTYPE_EPSILON else float(constants["eps"])
    affine = "weight" in parameters
    width = parameters["weight"].numel() if affine else _width(layer)
    if record.family == "layer_norm":
        return nn.LayerNorm(width, eps=eps, elementwise_affine=affine, bias="bias" in parameters)
    return nn.RMSNorm(width, eps=eps, elementwise_affine=affine)


def _width(layer: Any) -> int:
    for name in ("num_channels", "normalized_shape"):
        if (value := getattr(layer, name, None)) is not None:
            return value if isinstance(value, int) else int(value[0])
    raise NoReference("it does not tell its width")


def _itself(layer: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(layer).double()
    except Exception as cause:  # what is copied may be anything
        raise NoReference(f"it can't be copied to float64: {type(cause).__name__}: {cause}") from cause
