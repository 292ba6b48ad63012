"""Area-weighted scores, summed over batches and ranks.

Shapes: B forecasts, L lead times, E ensemble members, G grid points, V variables, S sources
(the model and its references).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etesian.inference.references import CLIMATOLOGY

MODEL = "model"
"""Name of the source that is measured; the others are its references."""

FLAT = 1e-6
"""An anomaly whose standard deviation is less than this share of the field's own size is rounding: nothing varies."""


@dataclass(frozen=True)
class ScoreTable:
    """Scores in physical units.

    Attributes
    ----------
    sources, lead_times, variables : tuple of str
        Names along S, L and V.
    units : dict of str to str
        Units of the variables, where they are known.
    rmse, mae, bias : ndarray [S, L, V], float64
        Root mean square, mean absolute and mean error (forecast minus truth); NaN where there
        was nothing to compare.
    acc : ndarray [S, L, V], float64
        Anomaly correlation coefficient, mean over the forecasts that have one; NaN where none has.
    samples : ndarray [L, V], int64
        Forecasts that had something to compare.
    forecasts : int
        Forecasts that were scored.
    """

    sources: tuple[str, ...]
    lead_times: tuple[str, ...]
    variables: tuple[str, ...]
    units: dict[str, str]
    rmse: NDArray[np.float64]
    mae: NDArray[np.float64]
    bias: NDArray[np.float64]
    acc: NDArray[np.float64]
    samples: NDArray[np.int64]
    forecasts: int

    def select(self, variables: Sequence[str], lead_times: Sequence[int]) -> ScoreTable:
        """Return the scores of these variables, and of the lead times at these positions."""
        columns = [self.variables.index(name) for name in variables]
        rows = list(lead_times)
        arrays = {name: getattr(self, name)[:, rows][:, :, columns] for name in ("rmse", "mae", "bias", "acc")}
        return replace(
            self, variables=tuple(variables), lead_times=tuple(self.lead_times[row] for row in rows),
            samples=self.samples[rows][:, columns], **arrays,
        )  # fmt: skip

    def best_reference(self, lead: int, variable: int) -> str | None:
        """Return the reference with the lowest RMSE, or None where there is none."""
        candidates = {
            name: float(self.rmse[position, lead, variable])
            for position, name in enumerate(self.sources)
            if name != MODEL and np.isfinite(self.rmse[position, lead, variable])
        }
        return min(candidates, key=candidates.__getitem__) if candidates else None

    def skill(self, lead: int, variable: int) -> float:
        """Return 1 - RMSE / RMSE of the best reference: 0 is no better, 1 is perfect; NaN without either."""
        best = self.best_reference(lead, variable)
        if best is None or MODEL not in self.sources:
            return float("nan")
        reference = float(self.rmse[self.sources.index(best), lead, variable])
        model = float(self.rmse[self.sources.index(MODEL), lead, variable])
        return 1.0 - model / reference if reference > 0.0 else float("nan")


class Scores:
    """Sums of the errors of several sources against one truth.

    Parameters
    ----------
    sources : sequence of str (S,)
        Names; the one called ``model`` is measured, the others are references.
    variables : sequence of str (V,)
        Names along V.
    lead_times : sequence of str (L,)
        How the table names the lead times, such as ``6 h``.
    area_weights : array_like (G,)
        Weights of the grid points (of this rank's, where ranks share a grid), not negative.
    units : mapping of str to str, optional
        Units of the variables.

    Notes
    -----
    Every source is compared at the same points: those where the truth and all references have a
    value. A NaN of the model at such a point makes its score NaN. Sums are kept in float64, so
    that their order, and the split over batches and ranks, matters only to rounding.

    The anomaly correlation is that of the WMO's standard verification (Manual on the Global Data-processing and
    Forecasting System, WMO-No. 485, appendix 2.2.34; Wilks, Statistical Methods in the Atmospheric Sciences, the
    centred form): for one forecast, with f and o the anomalies of forecast and truth from the climatology of the
    valid date, less their area-weighted means, sum(w f o) / sqrt(sum(w f^2) sum(w o^2)). Each member of an ensemble
    has its own; the score is their mean. Where either anomaly is flat, as that of climatology itself always is,
    there is none. Without a source ``climatology`` there is none at all. It takes the whole grid.
    """

    def __init__(
        self,
        sources: Sequence[str],
        variables: Sequence[str],
        lead_times: Sequence[str],
        area_weights: Any,
        units: Mapping[str, str] | None = None,
    ) -> None:
        self.sources, self.variables, self.lead_times = tuple(sources), tuple(variables), tuple(lead_times)
        self.units = dict(units or {})
        self.area_weights = torch.as_tensor(area_weights, dtype=torch.float64).reshape(-1)
        if not (torch.isfinite(self.area_weights).all() and (self.area_weights >= 0).all()):
            raise ValueError("area weights must be finite and not negative")
        lengths = (len(self.lead_times), len(self.variables))
        self._weight = torch.zeros(lengths, dtype=torch.float64)
        self._errors = torch.zeros((3, len(self.sources), *lengths), dtype=torch.float64)  # of e^2, |e|, e
        self._acc = torch.zeros((2, len(self.sources), *lengths), dtype=torch.float64)  # sum, number
        self._samples = torch.zeros(lengths, dtype=torch.float64)
        self._forecasts = 0

    def add(self, forecasts: Mapping[str, Any], truth: Any, sample_weights: Any = None) -> None:
        """Add a batch.

        Parameters
        ----------
        forecasts : mapping of str to array_like [B, L, E, G, V]
            One of each source; an axis of length 1 is broadcast.
        truth : array_like [B, L, E, G, V]
            What happened.
        sample_weights : array_like (B,), optional
            0 for padding, 1 for a forecast that counts; all count when left out.

        Raises
        ------
        ValueError
            When a source is missing or unknown, or a shape doesn't fit.
        """
        truth_BLEGV = torch.as_tensor(truth)
        expected = (len(self.lead_times), len(self.area_weights), len(self.variables))
        if truth_BLEGV.ndim != 5 or (truth_BLEGV.shape[1], *truth_BLEGV.shape[3:]) != expected:
            raise ValueError(f"the truth must be [B, L, E, G, V] with L, G, V = {expected}: {tuple(truth_BLEGV.shape)}")
        fields = {name: torch.as_tensor(field).expand_as(truth_BLEGV) for name, field in forecasts.items()}
        for lead in range(len(self.lead_times)):
            step = {name: field[:, lead] for name, field in fields.items()}
            self.add_lead(lead, step, truth_BLEGV[:, lead], sample_weights)

    def add_lead(self, lead: int, forecasts: Mapping[str, Any], truth: Any, sample_weights: Any = None) -> None:
        """Add one lead time of a batch: what :meth:`add` does, without holding all lead times.

        Parameters
        ----------
        lead : int
            Position of the lead time. A batch is counted with the first one.
        forecasts : mapping of str to array_like [B, E, G, V]
            One of each source; an axis of length 1 is broadcast.
        truth : array_like [B, E, G, V]
            What happened.
        sample_weights : array_like (B,), optional
            As for :meth:`add`.

        Raises
        ------
        ValueError
            As :meth:`add`.
        """
        if set(forecasts) != set(self.sources):
            raise ValueError(f"expected forecasts of {sorted(self.sources)}, not of {sorted(forecasts)}")
        truth_BEGV = torch.as_tensor(truth)
        counts = torch.ones(len(truth_BEGV)) if sample_weights is None else torch.as_tensor(sample_weights)
        if counts.shape != (len(truth_BEGV),) or not ((counts == 0) | (counts == 1)).all():
            raise ValueError("sample weights must be one 0 or 1 for each forecast")
        kept = counts.to(truth_BEGV.device) == 1
        fields = {
            name: torch.as_tensor(forecasts[name]).to(truth_BEGV.device).expand_as(truth_BEGV)[kept]
            for name in self.sources
        }
        self._add_fields(lead, fields, truth_BEGV[kept].to(torch.float64))
        if lead == 0:
            self._forecasts += int(kept.sum())

    def _add_fields(self, lead: int, forecasts: Mapping[str, Tensor], truth_BEGV: Tensor) -> None:
        valid = torch.isfinite(truth_BEGV)
        for name, field in forecasts.items():
            if name != MODEL:
                valid = valid & torch.isfinite(field)
        weights_BEGV = valid * self.area_weights.to(truth_BEGV.device)[:, None]
        self._weight[lead] += weights_BEGV.sum(dim=(0, 1, 2)).cpu()
        self._samples[lead] += valid.any(dim=2).any(dim=1).sum(dim=0).cpu()
        for source, name in enumerate(self.sources):
            error = torch.where(valid, forecasts[name].to(torch.float64) - truth_BEGV, 0.0)
            for row, term in enumerate((error.square(), error.abs(), error)):
                self._errors[row, source, lead] += (term * weights_BEGV).sum(dim=(0, 1, 2)).cpu()
        if CLIMATOLOGY in forecasts:
            climatology = forecasts[CLIMATOLOGY].to(torch.float64)
            observed, truth_varies = _anomaly(truth_BEGV, climatology, weights_BEGV)
            for source, name in enumerate(self.sources):
                forecast, varies = _anomaly(forecasts[name].to(torch.float64), climatology, weights_BEGV)
                acc_BEV = _correlation(forecast, observed, weights_BEGV)
                defined = varies & truth_varies
                self._acc[0, source, lead] += torch.where(defined, acc_BEV, 0.0).sum(dim=(0, 1)).cpu()
                self._acc[1, source, lead] += defined.sum(dim=(0, 1)).cpu()

    def merge(self, other: Scores) -> None:
        """Add the sums of another batch, worker or rank."""
        if (other.sources, other.variables, other.lead_times) != (self.sources, self.variables, self.lead_times):
            raise ValueError("scores of other sources, variables or lead times cannot be merged")
        self.load(self.packed() + other.packed())

    def packed(self) -> Tensor:
        """Return all sums as one float64 vector: its sum over the ranks is what :meth:`load` takes.

        Where ranks share the grid, each of them counts its forecasts, so `forecasts` and `samples` become the
        sum over the ranks, and the anomaly correlation is none; the other scores are exact.
        """
        forecasts = torch.tensor([float(self._forecasts)], dtype=torch.float64)
        return torch.cat([*(sums.reshape(-1) for sums in self._sums()), forecasts])

    def load(self, packed: Tensor) -> None:
        """Take over sums that :meth:`packed` made."""
        sums = self._sums()
        packed = packed.detach().to("cpu", torch.float64)
        sizes = [part.numel() for part in sums]
        if packed.shape != (sum(sizes) + 1,):
            raise ValueError("the sums belong to other sources, variables or lead times")
        for part, values in zip(sums, packed[:-1].split(sizes), strict=True):
            part.copy_(values.reshape(part.shape))
        self._forecasts = round(float(packed[-1]))

    def _sums(self) -> tuple[Tensor, ...]:
        return self._weight, self._errors, self._acc, self._samples

    def table(self) -> ScoreTable:
        """Return the scores of everything that was added."""
        square, absolute, signed = (self._errors / self._weight).numpy()  # 0 / 0 is NaN: nothing to compare
        return ScoreTable(
            self.sources, self.lead_times, self.variables, self.units, np.sqrt(square), absolute, signed,
            (self._acc[0] / self._acc[1]).numpy(), self._samples.numpy().astype(np.int64), self._forecasts,
        )  # fmt: skip


def _anomaly(field: Tensor, climatology: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the anomaly [B, E, G, V] less its area mean, 0 where nothing is compared, and where it varies [B, E, V].

    A NaN of the field at a point that counts is kept, and varies.
    """
    counts, total = weights > 0, weights.sum(dim=2)
    anomaly = torch.where(counts, field - climatology, 0.0)
    mean = (anomaly * weights).sum(dim=2) / total
    centred = torch.where(counts, anomaly - mean[:, :, None], 0.0)
    variance = (centred.square() * weights).sum(dim=2)
    size = (torch.where(counts, climatology, 0.0).square() * weights).sum(dim=2) + variance
    return centred, (total > 0) & ~(variance <= FLAT**2 * size)


def _correlation(one: Tensor, other: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted correlation [B, E, V] of centred fields [B, E, G, V]."""
    product, squares, other_squares = (
        (a * b * weights).sum(dim=2) for a, b in ((one, other), (one, one), (other, other))
    )
    return product / (squares * other_squares).sqrt()
