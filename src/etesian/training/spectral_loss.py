"""A loss of the spherical-harmonic spectrum, on grids of rows that are all of one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.inference.spectra import NoRows, RowTransform
from etesian.schema.registry import register
from etesian.schema.training import LossSettings
from etesian.training.losses import Loss, lead_weight

KEY = "training.training_loss"
"""Config key of the section."""


@register("loss", "spectral")
class SpectralSettings(LossSettings):
    """Difference of the spectra of spherical harmonics; for grids of rows of one length that go round the globe."""

    whole_grid: ClassVar[bool] = True

    distance: Literal["log_power", "coefficients"] = "log_power"
    """Compare the power at each total wavenumber, blind to where waves lie; or the coefficients."""
    truncation: int | None = Field(default=None, ge=1)
    """Highest total wavenumber; null takes the highest that the grid resolves."""
    floor: float = Field(default=1e-6, gt=0)
    """Added to each power before its logarithm, normalised units squared; read by ``log_power`` alone."""

    @model_validator(mode="after")
    def _reads_floor(self) -> SpectralSettings:
        if self.distance == "coefficients" and self.floor != type(self).model_fields["floor"].default:
            raise ValueError("training.training_loss.floor does nothing with distance='coefficients'")
        return self


class SphericalAnalysis(nn.Module):
    """Coefficients of spherical harmonics of fields on J rows of I points.

    Parameters
    ----------
    latitudes, longitudes : ndarray (G,)
        Degrees; each row in one piece, from west to east.
    truncation : int, optional
        T; left out, the highest that the grid resolves.

    Raises
    ------
    UserError
        If the grid has no such rows, or does not resolve `truncation`.
    """

    table: Tensor
    turn: Tensor
    count: Tensor

    def __init__(self, latitudes: NDArray[Any], longitudes: NDArray[Any], truncation: int | None = None) -> None:
        super().__init__()
        grids = "grids of rows of one length round the globe, such as regular latitudes and longitudes"
        try:
            transform = RowTransform(latitudes, longitudes)
        except NoRows as error:
            raise UserError(f"a spectral loss can't be had: {error}", where=f"{KEY}.kind", allowed=grids) from error
        if len(set(transform.row_lengths)) > 1:
            lengths = f"{min(transform.row_lengths)} to {max(transform.row_lengths)}"
            what = f"a spectral loss can't be had: the rows of the grid have {lengths} points"
            raise UserError(what, where=f"{KEY}.kind", allowed=grids)
        highest = transform.truncation
        if truncation is not None and truncation > highest:
            what = f"the grid resolves total wavenumbers up to {highest}, not {truncation}"
            raise UserError(what, where=f"{KEY}.truncation", allowed=f"a whole number from 1 to {highest}, or null")
        self.truncation = highest if truncation is None else truncation
        self.rows, size = len(transform.row_lengths), self.truncation + 1
        table = np.zeros((size, size, self.rows))  # [M, N, J]
        for m, functions in zip(range(size), transform.legendre(), strict=False):
            table[m, m:] = 0.5 * transform.weights * functions[: size - m]
        angle = -np.deg2rad(transform.first_longitudes)[:, None] * np.arange(size)  # [J, M]
        count = np.where(np.arange(size) == 0, 1.0, 2.0)  # m and -m
        for name, value in (("table", table), ("turn", np.stack([np.cos(angle), np.sin(angle)], -1)), ("count", count)):
            self.register_buffer(name, torch.from_numpy(value).to(torch.get_default_dtype()), persistent=False)

    def forward(self, fields: Tensor) -> Tensor:
        """Return the coefficients [B, E, V, M, N, 2] of fields [B, E, G, V]: real and imaginary part."""
        rows = fields.movedim(-1, 2).unflatten(-1, (self.rows, -1))  # [B, E, V, J, I]
        waves = torch.fft.rfft(rows, norm="forward")[..., : self.truncation + 1]  # [B, E, V, J, M]
        parts = torch.view_as_real(waves * torch.view_as_complex(self.turn))
        return torch.einsum("mnj,bevjmc->bevmnc", self.table, parts)

    def power(self, coefficients: Tensor) -> Tensor:
        """Return the power [B, E, V, N] at each total wavenumber; its sum is the mean square of the field."""
        return torch.einsum("m,bevmnc->bevn", self.count, coefficients.square())


class SpectralLoss(Loss):
    """Mean over ensemble and variables of the distance of two spectra.

    Parameters
    ----------
    analysis : SphericalAnalysis
        Of the grid.
    weights : Tensor, shape (1, V_out)
        Product of the scalers.
    leads : sequence of float
        As of :class:`~etesian.training.losses.WeightedLoss`.
    distance : {"log_power", "coefficients"}
        ``log_power``: the mean over wavenumbers n of the squared difference of ``ln(power_n + floor)``;
        ``coefficients``: the power of the difference, which is the squared error without what is not resolved.
    floor : float
        Normalised units squared.
    """

    weights: Tensor

    def __init__(
        self, analysis: SphericalAnalysis, weights: Tensor, leads: Sequence[float], distance: str, floor: float
    ) -> None:
        super().__init__()
        self.analysis, self.leads, self.distance, self.floor = analysis, tuple(leads), distance, floor
        self.register_buffer("weights", weights, persistent=False)

    def forward(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        return self.by_variable(forecast, target, valid, step, steps).mean(1)

    def by_variable(  # noqa: D102
        self, forecast: Tensor, target: Tensor, valid: Tensor | None = None, step: int = 0, steps: int = 1
    ) -> Tensor:
        with torch.autocast(target.device.type, enabled=False):
            distances = self.distances(forecast.to(target.dtype), target)
        return (distances * self.weights).mean(1) * lead_weight(self.leads, step, steps)

    def distances(self, forecast: Tensor, target: Tensor) -> Tensor:
        """Return the distance [B, E, V_out] of fields [B, E, G, V_out]."""
        power = self.analysis.power
        if self.distance == "coefficients":  # the transform is linear
            return power(self.analysis(forecast - target)).sum(-1)
        logarithms = [torch.log(power(self.analysis(fields)) + self.floor) for fields in (forecast, target)]
        return (logarithms[0] - logarithms[1]).square().mean(-1)

    def keep(self, points: slice, share: float) -> None:  # noqa: D102
        raise RuntimeError("a spectrum is that of the whole grid")
