"""Replacement of NaNs before the model sees a field."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from etesian.data.variables import Variables, unknown_names
from etesian.errors import Problem, UserError
from etesian.schema.data import ImputerSettings

KEY = "data.processors.imputer"
"""Config key of the section."""


class Imputer(nn.Module):
    """Put a variable's mean or a constant where it is NaN; leave the variables that are not named as they are.

    Parameters
    ----------
    variables : Variables
        Names of the last axis, V of them.
    statistics : mapping
        ``mean`` of the dataset, (V,) float64, physical units.
    settings : ImputerSettings
        Section ``data.processors.imputer``.

    Attributes
    ----------
    variables : tuple of str
        The variables that may hold NaNs, in the dataset's order.
    fill : Tensor
        Buffer (V,), float32, physical units; 0 where nothing is filled.
    filled : Tensor
        Buffer (V,), bool.

    Raises
    ------
    UserError
        For a variable that is not in the dataset or has two fillings, and for a filling that is not finite.
    """

    fill: Tensor
    filled: Tensor

    def __init__(self, variables: Variables, statistics: Mapping[str, np.ndarray], settings: ImputerSettings) -> None:
        super().__init__()
        names = variables.names
        problems = unknown_names(settings.mean, names, f"{KEY}.mean")
        problems += unknown_names(list(settings.constant), names, f"{KEY}.constant")
        problems += [
            Problem(f"variable {name!r} has two imputers", where=f"{KEY}.mean, {KEY}.constant", mend="keep one of them")
            for name in settings.mean
            if name in settings.constant
        ]
        if problems:
            raise UserError.collect(problems)
        values = {name: float(statistics["mean"][names.index(name)]) for name in settings.mean} | settings.constant
        problems = [
            Problem(
                f"NaNs of {name!r} would be replaced by {value}, which is not finite",
                where=f"{KEY}.{'mean' if name in settings.mean else 'constant'}",
                mend=f"{KEY}.constant.{name}=NUMBER",
            )
            for name, value in values.items()
            if not np.isfinite(value)
        ]
        if problems:
            raise UserError.collect(problems)
        self.variables = tuple(name for name in names if name in values)
        self.register_buffer("fill", torch.tensor([values.get(name, 0.0) for name in names], dtype=torch.float32))
        self.register_buffer("filled", torch.tensor([name in values for name in names], dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [..., V], physical units, with the NaNs of the named variables filled."""
        if not self.variables:
            return x
        return torch.where(torch.isnan(x) & self.filled, self.fill.to(x.dtype), x)  # [..., V]
