"""From the section ``training.training_loss`` to a loss; what can't be had is found before there is a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from etesian.errors import Problem, UserError
from etesian.schema.training import LossSettings
from etesian.training.combined_loss import CombinedLoss, CombinedSettings
from etesian.training.ensemble_loss import CRPSLoss, CRPSSettings
from etesian.training.loss_context import LossContext, members
from etesian.training.losses import (
    HuberLoss,
    HuberSettings,
    LogCoshLoss,
    Loss,
    MAELoss,
    MSELoss,
    RMSELoss,
    WeightedLoss,
)
from etesian.training.scalers import Scaler, VariableScaler, multiply
from etesian.training.spectral_loss import SpectralLoss, SpectralSettings, SphericalAnalysis

KEY = "training.training_loss"
"""Config key of the section."""

_POINTWISE: dict[str, Callable[[Tensor, Sequence[float]], WeightedLoss]] = {
    "mse": MSELoss, "rmse": RMSELoss, "mae": MAELoss, "log_cosh": LogCoshLoss,
}  # fmt: skip
"""Losses without keys of their own."""


def check_loss(context: LossContext) -> None:
    """Check the loss and its scalers against the data.

    Raises
    ------
    UserError
        With the first that can't be had, and with every name in a scaler of variables that is none.
    """
    problems: list[Problem] = []
    for name, scaler in context.config.training.scalers.items():
        if isinstance(scaler, VariableScaler):
            try:
                scaler.weights(f"training.scalers.{name}", context)
            except UserError as error:
                problems += error.problems
    if problems:
        raise UserError.collect(problems)
    build_loss(context)


def build_loss(context: LossContext) -> Loss:
    """Make the loss of a config.

    Parameters
    ----------
    context : LossContext
        The config, its data and its graph; without a graph the loss lacks the scalers that read it.

    Raises
    ------
    UserError
        If the data or the grid do not allow the loss or a scaler of it.
    """
    settings = context.config.training.training_loss
    if isinstance(settings, CombinedSettings):
        parts = [_build(part, [*settings.scalers, *part.scalers], context) for part in settings.losses]
        return CombinedLoss(parts, settings.loss_weights or [1.0] * len(parts))
    return _build(settings, settings.scalers, context)


def _build(settings: LossSettings, scalers: Sequence[str], context: LossContext) -> Loss:
    if isinstance(settings, SpectralSettings):
        return _spectral(settings, scalers, context)
    weights, leads = multiply(scalers, context)
    weights = weights.expand(context.data.latitudes.size, -1).to(torch.get_default_dtype()).contiguous()
    if isinstance(settings, CRPSSettings):
        _check_members(context)
        return CRPSLoss(weights, leads, settings.alpha)
    if isinstance(settings, HuberSettings):
        return HuberLoss(weights, leads, settings.delta)
    return _POINTWISE[settings.kind](weights, leads)


def _spectral(settings: SpectralSettings, scalers: Sequence[str], context: LossContext) -> SpectralLoss:
    """Make a spectral loss, which has neither points to weight nor some to leave out."""
    known = context.config.training.scalers
    of_points = [name for name in scalers if isinstance(scaler := known[name], Scaler) and scaler.over == "points"]
    if of_points:
        raise UserError(
            f"{', '.join(of_points)} weighs grid points, of which a spectrum has none",
            where=f"{KEY}.scalers",
            allowed="with a spectral loss: scalers of variables and of steps; in a combination others have their own",
            mend="take it out of the scalers of the spectral loss",
        )
    if context.imputed:
        raise UserError(
            f"a spectral loss needs whole fields, and {', '.join(context.imputed)} may hold NaNs",
            where=f"{KEY}.kind",
            allowed="outputs without an imputer",
        )
    analysis = SphericalAnalysis(context.data.latitudes, context.data.longitudes, settings.truncation)
    weights, leads = multiply(scalers, context)
    return SpectralLoss(analysis, weights.to(torch.get_default_dtype()), leads, settings.distance, settings.floor)


def _check_members(context: LossContext) -> None:
    fewest = min(members(context.splits))
    if fewest < 2:
        raise UserError(
            "the loss crps compares the members of an ensemble, and the dataset has one",
            where=f"{KEY}.kind",
            allowed="with a dataset of one member: mse, rmse, mae, huber, log_cosh, spectral",
            mend=f"{KEY}.kind=mae, which is the crps of one forecast",
        )
