"""Losses: the error of a forecast at each point, weighed by the scalers, one number a sample.

Each kind declares its section of the config beside it and registers both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etesian.schema.registry import register
from etesian.schema.training import LossSettings


class WeightedLoss(nn.Module, ABC):
    """Mean over points and variables of a point-wise error times a fixed weight.

    Parameters
    ----------
    weights : Tensor, shape (G, V_out)
        Product of the scalers.
    """

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights, persistent=False)

    def keep(self, points: slice, share: float) -> None:
        """Keep some of the grid points alone, with their weights times a share of the loss of all points."""
        self.weights = self.weights[points] * share

    @abstractmethod
    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:
        """Return the error at each point, of the shape of both arguments."""

    def forward(self, forecast: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the loss of each sample.

        Parameters
        ----------
        forecast, target : Tensor, shape (B, E, G, V_out)
            Normalised states.
        valid : Tensor of bool, shape (B, E, G, V_out), optional
            Where the target was observed; other points count as zero.

        Returns
        -------
        Tensor, shape (B,)
            Mean over ensemble, points and variables.
        """
        return self._weighted(forecast, target, valid).flatten(1).mean(1)

    def by_variable(self, forecast: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return each variable's part of each sample's loss (B, V_out): the mean over ensemble and points."""
        return self._weighted(forecast, target, valid).mean((1, 2))

    def _weighted(self, forecast: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
        error = self.pointwise(forecast.to(target.dtype), target) * self.weights
        return error if valid is None else error * valid


@register("loss", "mse")
class MSESettings(LossSettings):
    """Mean squared error."""


class MSELoss(WeightedLoss):
    """Mean squared error."""

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return (forecast - target).square()


@register("loss", "mae")
class MAESettings(LossSettings):
    """Mean absolute error."""


class MAELoss(WeightedLoss):
    """Mean absolute error."""

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return (forecast - target).abs()


@register("loss", "huber")
class HuberSettings(LossSettings):
    """Huber's loss: squared up to ``delta`` (normalised units), linear beyond."""

    delta: float = Field(default=1.0, gt=0)
    """Error at which the loss turns from quadratic to linear, normalised units."""


class HuberLoss(WeightedLoss):
    """Huber's loss (Huber 1964, doi:10.1214/aoms/1177703732): e^2/2 for abs(e) <= d, else d (abs(e) - d/2)."""

    def __init__(self, weights: Tensor, delta: float) -> None:
        super().__init__(weights)
        self.delta = delta

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return F.huber_loss(forecast, target, reduction="none", delta=self.delta)


def build_loss(settings: LossSettings, weights: Tensor) -> WeightedLoss:
    """Make the loss of a section of the config.

    Parameters
    ----------
    settings : LossSettings
        One of the registered kinds.
    weights : Tensor, shape (G, V_out)
        Product of the scalers.
    """
    weights = weights.to(torch.get_default_dtype())
    if isinstance(settings, HuberSettings):
        return HuberLoss(weights, settings.delta)
    return {"mse": MSELoss, "mae": MAELoss}[settings.kind](weights)
