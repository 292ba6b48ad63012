"""A weighted sum of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from etesian.schema.registry import register
from etesian.schema.training import LossSettings
from etesian.training.losses import Loss


@register("loss", "combined")
class CombinedSettings(LossSettings):
    """Weighted sum of losses; ``scalers`` hold for each of them, beside its own."""

    losses: list[SerializeAsAny[LossSettings]] = Field(min_length=1)
    """The losses, each with its ``kind``, its keys and ``scalers`` of its own."""
    loss_weights: list[Annotated[float, Field(gt=0)]] | None = None
    """Weight of each loss, in their order; null gives each a weight of 1."""

    @property
    def parts(self) -> Sequence[LossSettings]:  # noqa: D102
        return self.losses

    @model_validator(mode="after")
    def _fits(self) -> CombinedSettings:
        if self.loss_weights is not None and len(self.loss_weights) != len(self.losses):
            raise ValueError(
                f"training.training_loss.loss_weights has {len(self.loss_weights)} entries for"
                f" {len(self.losses)} losses: one for each, or null"
            )
        return self


class CombinedLoss(Loss):
    """Weighted sum of losses.

    Parameters
    ----------
    losses : sequence of Loss
        What is added up.
    factors : sequence of float
        Weight of each.
    """

    def __init__(self, losses: Sequence[Loss], factors: Sequence[float]) -> None:
        super().__init__()
        self.losses = nn.ModuleList(losses)
        self.factors = tuple(factors)

    def forward(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        return self._sum([loss(forecast, target, valid, step, steps) for loss in self.losses])

    def by_variable(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        return self._sum([loss.by_variable(forecast, target, valid, step, steps) for loss in self._parts()])

    def _parts(self) -> list[Loss]:
        return [loss for loss in self.losses if isinstance(loss, Loss)]

    def _sum(self, values: list[Tensor]) -> Tensor:
        return torch.stack([factor * value for factor, value in zip(self.factors, values, strict=True)]).sum(0)

    def keep(self, points: slice, share: float) -> None:  # noqa: D102
        for loss in self._parts():
            loss.keep(points, share)
