"""Forecasts that a model is measured against: persistence, damped anomaly persistence, climatology.

Shapes: B forecasts, L lead times, E ensemble members, G grid points, V variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etesian.inference.climatology import (
    SIZE_LIMIT,
    Climatology,
    FieldSeries,
    check_size,
    fit_climatology,
    readable,
    size_in_bytes,
)
from etesian.inference.climatology_file import load_climatology
from etesian.schema.diagnostics import ScoresSettings

PERSISTENCE = "persistence"
DAMPED_PERSISTENCE = "damped_persistence"
CLIMATOLOGY = "climatology"


@dataclass(frozen=True)
class Persistence:
    """The last state, unchanged."""

    def forecast(self, initial: Any, lead_times: int) -> NDArray[Any]:
        """Repeat the initial fields [B, E, G, V] along the lead times: [B, L, E, G, V]."""
        return np.repeat(np.asarray(initial)[:, None], lead_times, axis=1)


@dataclass(frozen=True)
class DampedPersistence:
    """Climatology plus the last anomaly, damped: x(t + l) = c(t + l) + r_l (x(t) - c(t)).

    Attributes
    ----------
    climatology : Climatology
        The c of the formula.
    steps : tuple of int (L,)
        Lead times, in dates of the dataset.
    factor : ndarray [L, V, G], float32
        The r of the formula, for each lead time, variable and grid point.
    """

    climatology: Climatology
    steps: tuple[int, ...]
    factor: NDArray[np.float32]

    def forecast(
        self, initial: Any, initial_dates: Any, valid_dates: Any, leads: slice = slice(None)
    ) -> NDArray[np.float32]:
        """Forecast every lead time, or some.

        Parameters
        ----------
        initial : array_like [B, E, G, V]
            Last states, physical units.
        initial_dates : array_like (B,) of datetime64
            Their dates.
        valid_dates : array_like (B, L) of datetime64
            Dates that are forecast.
        leads : slice
            Which of the lead times these dates are.

        Returns
        -------
        ndarray [B, L, E, G, V]
        """
        anomaly = np.asarray(initial) - self.climatology.at(initial_dates)  # [B, E, G, V]
        factor = self.factor[leads].transpose(0, 2, 1)[:, None]  # [L, V, G] -> [L, 1, G, V]
        return _climatology_at(self.climatology, valid_dates) + factor * anomaly[:, None]


def fit_damped_persistence(
    dataset: FieldSeries, climatology: Climatology, steps: Sequence[int], *, allow_large: bool = False
) -> DampedPersistence:
    """Fit a damping factor for each grid point, variable and lead time by least squares.

    Parameters
    ----------
    dataset : FieldSeries
        The training period, read once, one date at a time.
    climatology : Climatology
        Climatology of the same period.
    steps : sequence of int (L,)
        Lead times, in dates of the dataset.
    allow_large : bool
        Read a training period over 20 GB too.

    Returns
    -------
    DampedPersistence
        With r_l = sum_t a(t) a(t + l) / sum_t a(t)^2 over the pairs of dates that both have a
        value, a the anomaly; 0 where there is no pair or no anomaly.

    Raises
    ------
    UserError
        When the training period is over the limit and `allow_large` is false.

    Notes
    -----
    Memory: 2 L x V x G sums in float64 and as many anomalies as the longest lead time has dates.
    The members of an ensemble are pooled.
    """
    steps = tuple(int(step) for step in steps)
    if not steps or min(steps) < 1:
        raise ValueError(f"lead times must be at least one date, not {steps}")
    check_size(dataset, allow_large=allow_large)
    positions = [list(dataset.variables).index(name) for name in climatology.variables]
    dates = np.asarray(dataset.dates)
    shape = (len(steps), len(positions), int(dataset.shape[3]))
    product, square = np.zeros(shape), np.zeros(shape)
    recent: dict[int, NDArray[np.float64]] = {}  # anomalies [V, E, G] of the last dates
    for index in readable(dataset):
        mean = climatology.at(dates[index])[0].transpose(2, 0, 1)  # [1, G, V] -> [V, 1, G]
        recent[index] = np.asarray(dataset[index])[positions].astype(np.float64) - mean
        for position, step in enumerate(steps):
            if index - step in recent:
                before = recent[index - step]
                both = before * recent[index]
                valid = ~np.isnan(both)
                product[position] += np.where(valid, both, 0.0).sum(axis=1)
                square[position] += np.where(valid, before**2, 0.0).sum(axis=1)
        recent = {key: anomaly for key, anomaly in recent.items() if key > index - max(steps)}
    factor = np.divide(product, square, out=np.zeros(shape), where=square > 0.0)
    return DampedPersistence(climatology, steps, factor.astype(np.float32))


@dataclass(frozen=True)
class ReferenceSet:
    """All references of an experiment. Climatology and damped persistence may be off.

    Attributes
    ----------
    climatology : Climatology, optional
        Off with ``diagnostics.scores.climatology=none``.
    damped : DampedPersistence, optional
        Off without a climatology, and where its fit would read a large training period unasked.
    """

    climatology: Climatology | None = None
    damped: DampedPersistence | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the references, in the order of the table."""
        there = (True, self.damped is not None, self.climatology is not None)
        return tuple(name for name, on in zip((PERSISTENCE, DAMPED_PERSISTENCE, CLIMATOLOGY), there, strict=True) if on)

    def forecasts(
        self, initial: Any, initial_dates: Any, valid_dates: Any, leads: slice = slice(None)
    ) -> dict[str, NDArray[Any]]:
        """Return the forecast [B, L, E, G, V] of each reference (climatology: one member).

        Parameters are those of :meth:`DampedPersistence.forecast`.
        """
        valid_dates = np.asarray(valid_dates)
        forecasts: dict[str, NDArray[Any]] = {PERSISTENCE: Persistence().forecast(initial, valid_dates.shape[1])}
        if self.damped is not None:
            forecasts[DAMPED_PERSISTENCE] = self.damped.forecast(initial, initial_dates, valid_dates, leads)
        if self.climatology is not None:
            forecasts[CLIMATOLOGY] = _climatology_at(self.climatology, valid_dates)
        return forecasts


def fit_references(
    dataset: FieldSeries,
    settings: ScoresSettings,
    variables: Sequence[str],
    *,
    step: int = 1,
    units: Mapping[str, str] | None = None,
) -> ReferenceSet:
    """Fit or read the references that ``diagnostics.scores`` asks for.

    Parameters
    ----------
    dataset : FieldSeries
        The training period.
    settings : ScoresSettings
        Section ``diagnostics.scores``.
    variables : sequence of str
        Variables that are scored.
    step : int
        Dates of the dataset from one lead time to the next.
    units : mapping of str to str, optional
        Checked against those of a climatology file.

    Returns
    -------
    ReferenceSet
        With a climatology file, damped persistence is fitted only if the training period is
        under 20 GB or ``allow_large`` is set.

    Raises
    ------
    UserError
        For a large training period, or a climatology file that doesn't fit.
    """
    if settings.climatology == "none":
        return ReferenceSet()
    if settings.climatology_file is None:
        climatology = fit_climatology(dataset, settings.climatology, variables, allow_large=settings.allow_large)
    else:
        climatology = load_climatology(
            Path(settings.climatology_file), settings.climatology, variables,
            np.asarray(dataset.latitudes), np.asarray(dataset.longitudes), units,
        )  # fmt: skip
    if size_in_bytes(dataset) > SIZE_LIMIT and not settings.allow_large:
        return ReferenceSet(climatology)
    steps = [step * (lead + 1) for lead in range(settings.lead_times)]
    return ReferenceSet(
        climatology, fit_damped_persistence(dataset, climatology, steps, allow_large=settings.allow_large)
    )


def _climatology_at(climatology: Climatology, dates: Any) -> NDArray[np.float32]:
    """Return [B, L, 1, G, V] for dates (B, L)."""
    dates = np.asarray(dates)
    fields = climatology.at(dates.reshape(-1))
    return fields.reshape(*dates.shape, *fields.shape[1:])
