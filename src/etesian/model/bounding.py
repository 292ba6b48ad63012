"""Bounds of output variables, given in physical units and applied to normalised values, in the config's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etesian.errors import Problem, UserError, did_you_mean
from etesian.model.fields import ModelFields
from etesian.schema.base import Section
from etesian.schema.registry import register


class _BoundingSettings(Section):
    variables: list[str] = Field(min_length=1)
    """Output variables that are bounded."""


class _RangeSettings(_BoundingSettings):
    @model_validator(mode="after")
    def _ordered(self) -> _RangeSettings:
        low, high = getattr(self, "min_val"), getattr(self, "max_val")  # noqa: B009
        if low >= high:
            raise ValueError(f"min_val={low} is not below max_val={high}")
        return self


@register("bounding", "relu")
class ReluSettings(_BoundingSettings):
    """At least `min_val`."""

    kind: Literal["relu"]
    min_val: float = 0.0
    """Lower bound, physical units."""


@register("bounding", "hardtanh")
class HardtanhSettings(_RangeSettings):
    """From `min_val` to `max_val`."""

    kind: Literal["hardtanh"]
    min_val: float
    """Lower bound, physical units."""
    max_val: float
    """Upper bound, physical units."""


@register("bounding", "fraction")
class FractionSettings(_RangeSettings):
    """A fraction, from `min_val` to `max_val`, of another output.

    The network's own value is read as the fraction; the variable becomes that fraction of `total_variable`, in
    physical units. Bound the total variable first.
    """

    kind: Literal["fraction"]
    total_variable: str
    """The output that the variables are parts of."""
    min_val: float = 0.0
    """Least fraction."""
    max_val: float = 1.0
    """Greatest fraction."""


BoundingSettings = ReluSettings | HardtanhSettings | FractionSettings


class Clamp(nn.Module):
    """Keeps variables between bounds: kinds ``relu`` and ``hardtanh``.

    Parameters
    ----------
    index : Tensor, shape (K,)
        Positions of the variables among the outputs.
    low : Tensor, shape (K,)
        Lower bounds, normalised.
    high : Tensor, shape (K,), optional
        Upper bounds, normalised.
    """

    index: Tensor
    low: Tensor
    high: Tensor | None

    def __init__(self, index: Tensor, low: Tensor, high: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def forward(self, y: Tensor) -> Tensor:
        """Bound y [..., V_out], normalised."""
        bounded = y.index_select(-1, self.index).clamp(self.low, self.high)  # [..., K]
        return y.index_copy(-1, self.index, bounded)


class Fraction(nn.Module):
    """Makes variables a fraction of another one.

    Parameters
    ----------
    index : Tensor, shape (K,)
        Positions of the variables among the outputs.
    total : int
        Position of the variable that they are parts of.
    bounds : tuple of float
        Least and greatest fraction.
    fields : ModelFields
        The map between physical and normalised values.
    """

    index: Tensor
    scale: Tensor
    offset: Tensor
    total_scale: Tensor
    total_offset: Tensor

    def __init__(self, index: Tensor, total: int, bounds: tuple[float, float], fields: ModelFields) -> None:
        super().__init__()
        self.total, self.bounds = total, bounds
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("scale", fields.output_scale[index].clone(), persistent=False)
        self.register_buffer("offset", fields.output_offset[index].clone(), persistent=False)
        self.register_buffer("total_scale", fields.output_scale[total].clone(), persistent=False)
        self.register_buffer("total_offset", fields.output_offset[total].clone(), persistent=False)

    def forward(self, y: Tensor) -> Tensor:
        """Bound y [..., V_out], normalised."""
        total = (y[..., self.total, None] - self.total_offset) / self.total_scale  # [..., 1], physical units
        fraction = y.index_select(-1, self.index).clamp(*self.bounds)  # [..., K]
        return y.index_copy(-1, self.index, fraction * total * self.scale + self.offset)


def build_bounding(settings: Sequence[Section], fields: ModelFields, *, residual: bool) -> nn.Sequential:
    """Build the bounds of a model.

    Parameters
    ----------
    settings : sequence of Section
        Section ``model.bounding``.
    fields : ModelFields
        Variables, and the map between physical and normalised outputs.
    residual : bool
        Whether prognostic outputs are changes added to the input.

    Raises
    ------
    UserError
        If a variable is no output, or a fraction is asked of a variable that the residual is added to.
    """
    problems: list[Problem] = []
    layers = []
    for position, bound in enumerate(settings):
        where = f"model.bounding[{position}]"
        if not isinstance(bound, ReluSettings | HardtanhSettings | FractionSettings):
            raise TypeError(f"{where} is a {type(bound).__name__}")
        found = _check(bound, fields, where, residual)
        problems.extend(found)
        if not found:
            layers.append(_build(bound, fields))
    if problems:
        raise UserError.collect(problems)
    return nn.Sequential(*layers)


def _check(bound: BoundingSettings, fields: ModelFields, where: str, residual: bool) -> list[Problem]:
    names = [(name, f"{where}.variables") for name in bound.variables]
    problems = []
    if isinstance(bound, FractionSettings):
        names.append((bound.total_variable, f"{where}.total_variable"))
        if bound.total_variable in bound.variables:
            what = f"{bound.total_variable!r} can't be a fraction of itself"
            problems.append(Problem(what, f"{where}.variables"))
        for name in bound.variables:
            if residual and name in fields.prognostic:
                what = f"{name!r} is prognostic: what the network gives is a change of it, not a fraction"
                problems.append(Problem(what, f"{where}.variables", "diagnostic variables", "use kind hardtanh"))
    for name, key in names:
        if name not in fields.output_names:
            what = f"{name!r} is not an output of the model"
            problems.append(Problem(what, key, ", ".join(fields.output_names), did_you_mean(name, fields.output_names)))
    return problems


def _build(bound: BoundingSettings, fields: ModelFields) -> nn.Module:
    index = torch.tensor([fields.output_names.index(name) for name in bound.variables])
    scale, offset = fields.output_scale[index], fields.output_offset[index]
    if isinstance(bound, FractionSettings):
        total = fields.output_names.index(bound.total_variable)
        return Fraction(index, total, (bound.min_val, bound.max_val), fields)
    high = bound.max_val * scale + offset if isinstance(bound, HardtanhSettings) else None
    return Clamp(index, bound.min_val * scale + offset, high)
