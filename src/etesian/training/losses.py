"""Losses: the error of a forecast at each point, weighed by the scalers, one number a sample.

Each kind declares its section of the config beside it and registers it; `training.build_loss` makes the loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etesian.schema.registry import register
from etesian.schema.training import LossSettings


class Loss(nn.Module, ABC):
    """What a training step makes small: one number a sample."""

    @abstractmethod
    def forward(
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        """Return the loss of each sample.

        Parameters
        ----------
        forecast, target : Tensor, shape (B, E, G, V_out)
            Normalised states.
        valid : Tensor of bool, shape (B, E, G, V_out), optional
            Where the target was observed; other points count as zero.
        step, steps : int
            Which step of a rollout, from 0, and how many it has.

        Returns
        -------
        Tensor, shape (B,)
        """

    @abstractmethod
    def by_variable(
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        """Return the loss of each variable alone (B, V_out), of the arguments of :meth:`forward`."""

    @abstractmethod
    def keep(self, points: slice, share: float) -> None:
        """Keep some of the grid points alone, with their weights times a share of the loss of all points."""


def lead_weight(leads: Sequence[float], step: int, steps: int) -> float:
    """Return the weight of a step in a rollout of so many, whose mean weight is one; without weights it is one."""
    return leads[step] * steps / math.fsum(leads[:steps]) if leads else 1.0


class WeightedLoss(Loss):
    """Mean over ensemble, points and variables of a point-wise error times a fixed weight.

    Parameters
    ----------
    weights : Tensor, shape (G, V_out)
        Product of the scalers.
    leads : sequence of float, optional
        Weight of each step of the longest rollout; left out, all count the same.
    """

    weights: Tensor

    def __init__(self, weights: Tensor, leads: Sequence[float] = ()) -> None:
        super().__init__()
        self.register_buffer("weights", weights, persistent=False)
        self.leads = tuple(leads)

    @abstractmethod
    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:
        """Return the error at each point, of the shape of both arguments; the ensemble may have shrunk to 1."""

    def forward(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        loss = self.sample_loss(forecast.to(target.dtype), target, valid)
        return loss * lead_weight(self.leads, step, steps)

    def keep(self, points: slice, share: float) -> None:  # noqa: D102
        self.weights = self.weights[points] * share

    def sample_loss(self, forecast: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
        """Return the loss (B,) without the weight of the step."""
        return self._weighted(forecast, target, valid).flatten(1).mean(1)

    def by_variable(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        means = self._weighted(forecast.to(target.dtype), target, valid).mean((1, 2))
        return means * lead_weight(self.leads, step, steps)

    def _weighted(self, forecast: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
        error = self.pointwise(forecast, target) * self.weights
        return error if valid is None else error * self.counted(valid)

    def counted(self, valid: Tensor) -> Tensor:
        """Return where the errors of :meth:`pointwise` count."""
        return valid


@register("loss", "mse")
class MSESettings(LossSettings):
    """Mean squared error."""


class MSELoss(WeightedLoss):
    """Mean squared error."""

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return (forecast - target).square()


@register("loss", "rmse")
class RMSESettings(LossSettings):
    """Square root of each sample's mean squared error."""

    whole_grid: ClassVar[bool] = True


class RMSELoss(MSELoss):
    """Square root of a sample's weighted mean of squared errors; 0, with gradient 0, where there is none."""

    def sample_loss(self, forecast: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:  # noqa: D102
        mean_square = super().sample_loss(forecast, target, valid)
        none = mean_square == 0  # the root has no finite gradient there
        return mean_square.masked_fill(none, 1.0).sqrt().masked_fill(none, 0.0)

    def by_variable(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        means = self._weighted(forecast.to(target.dtype), target, valid).mean((1, 2)).sqrt()
        return means * lead_weight(self.leads, step, steps)

    def keep(self, points: slice, share: float) -> None:  # noqa: D102
        raise RuntimeError("the root of a mean over all points is no sum over parts of them")


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

    def __init__(self, weights: Tensor, leads: Sequence[float], delta: float) -> None:
        super().__init__(weights, leads)
        self.delta = delta

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        return F.huber_loss(forecast, target, reduction="none", delta=self.delta)


@register("loss", "log_cosh")
class LogCoshSettings(LossSettings):
    """Logarithm of the hyperbolic cosine of the error: half its square where small, linear where large."""


class LogCoshLoss(WeightedLoss):
    """Logarithm of the hyperbolic cosine of the error, as ``e + ln(1 + exp(-2 e)) - ln 2``, which does not overflow."""

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:  # noqa: D102
        error = forecast - target
        return error + F.softplus(-2.0 * error) - math.log(2.0)
