"""The almost fair continuous ranked probability score of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from etesian.schema.registry import register
from etesian.schema.training import LossSettings
from etesian.training.losses import WeightedLoss


@register("loss", "crps")
class CRPSSettings(LossSettings):
    """Almost fair CRPS of the ensemble, by its kernel; for data of several members."""

    alpha: float = Field(default=0.95, ge=0, le=1)
    """1 is the fair score, 0 that of the ensemble as it is; in between, almost fair."""


class CRPSLoss(WeightedLoss):
    r"""Almost fair CRPS (Lang et al. 2024, arXiv:2412.15832, eq. 4) of M members x_j for a truth y.

    ``mean_j |x_j - y| - (1 - eps) / (2 M (M - 1)) sum_jk |x_j - x_k|`` with ``eps = (1 - alpha) / M``. Where the data
    have several members too, each of them is a truth that may be, and the score is the mean over them.
    """

    def __init__(self, weights: Tensor, leads: Sequence[float], alpha: float) -> None:
        super().__init__(weights, leads)
        self.alpha = alpha

    def pointwise(self, forecast: Tensor, target: Tensor) -> Tensor:
        """Return the score [B, 1, G, V_out] of forecasts [B, M, G, V_out] for truths [B, K, G, V_out]."""
        members = forecast.shape[1]
        error = torch.zeros_like(forecast[:, :1])
        for truth in target.split(1, dim=1):
            error = error + (forecast - truth).abs().mean(1, keepdim=True)
        spread = torch.zeros_like(error)
        for shift in range(1, members):  # every pair of members j, k that are not the same, in both orders
            spread = spread + (forecast - forecast.roll(shift, dims=1)).abs().mean(1, keepdim=True)
        fairness = 1.0 - (1.0 - self.alpha) / members
        return error / target.shape[1] - 0.5 * fairness * spread / (members - 1)

    def counted(self, valid: Tensor) -> Tensor:
        """Return where every truth was observed, [B, 1, G, V_out]."""
        return valid.all(1, keepdim=True)
