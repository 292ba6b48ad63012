"""Forecasts over a period, scored as they are made: one lead time of one batch is in memory at a time.

Shapes: B forecasts, T states of a window, E ensemble members, G grid points, V variables of the dataset, V_out outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from etesian.data.variables import Variables
from etesian.data.windows import Batch
from etesian.inference.references import ReferenceSet
from etesian.inference.scores import MODEL, Scores


@dataclass(frozen=True)
class LeadTime:
    """One lead time of those forecasts of a batch that count.

    Attributes
    ----------
    lead : int
        Which lead time, from 0.
    forecast, truth, initial : Tensor [B, E, G, V_out]
        Physical units, on the CPU; `initial` is the newest state that the forecasts start from.
    dates : array (B,)
        Valid dates.
    """

    lead: int
    forecast: Tensor
    truth: Tensor
    initial: Tensor
    dates: NDArray[np.datetime64]


class Observer(Protocol):
    """What looks at forecasts as they are made, beside the scores."""

    def add(self, step: LeadTime) -> None:
        """Take in one lead time of a batch."""


def score_batches(
    batches: Iterable[Batch],
    dates_of: Callable[[int], NDArray[np.datetime64]],
    states: Callable[[Tensor], Iterator[Tensor]],
    variables: Variables,
    multistep_input: int,
    references: ReferenceSet,
    scores: Scores,
    observers: Sequence[Observer] = (),
) -> None:
    """Forecast from every window and add to the scores, one lead time after the other.

    Parameters
    ----------
    batches : iterable of Batch
        Windows of ``multistep_input`` states and one for each lead time.
    dates_of : callable
        Dates (T,) of a window.
    states : callable
        From windows x [B, T, E, G, V] to the states [B, E, G, V_out] of each lead time, on any device: scores are
        computed there.
    variables : Variables
        Of the dataset.
    multistep_input : int
        Input states.
    references : ReferenceSet
        What is scored beside the model.
    scores : Scores
        Of the model and the references; what is forecast is added.
    observers : sequence of Observer
        What else is to see the forecasts.
    """
    outputs, first = variables.data_output, multistep_input
    for batch in batches:
        x = batch["x"]
        dates = np.stack([dates_of(int(index)) for index in batch["index"]])  # [B, T]
        initial = x[:, first - 1][..., outputs]  # [B, E, G, V_out]
        kept = batch["weight"] == 1
        for lead, forecast in enumerate(states(x)):
            valid = dates[:, first + lead]
            truth = x[:, first + lead][..., outputs].to(forecast.device)
            fields: dict[str, Any] = {
                name: field[:, 0]
                for name, field in references.forecasts(
                    initial.numpy(), dates[:, first - 1], valid[:, None], slice(lead, lead + 1)
                ).items()
            }
            scores.add_lead(lead, fields | {MODEL: forecast}, truth, batch["weight"])
            if observers:
                step = LeadTime(lead, forecast.cpu()[kept], truth.cpu()[kept], initial[kept], valid[kept.numpy()])
                for observer in observers:
                    observer.add(step)


def at_least_float32(states: Iterator[Tensor], context: Callable[[], AbstractContextManager[Any]]) -> Iterator[Tensor]:
    """Yield each state in 32 bits or more, computed within a context such as autocast's.

    It stays on its device, where it is scored, unless that has no 64 bits to add up in.
    """
    while True:
        with context():
            state = next(states, None)
        if state is None:
            return
        state = state.cpu() if state.device.type == "mps" else state
        yield state if state.element_size() > 4 else state.float()


class FieldErrors:
    """Bias and RMSE at each grid point, of some variables at some lead times.

    Parameters
    ----------
    leads : sequence of int (L,)
        Lead times, from 0.
    columns : sequence of int (V,)
        Positions of the variables among the outputs.
    points : int
        G.

    Notes
    -----
    Memory: 3 x L x V x G numbers in float64.
    """

    def __init__(self, leads: Sequence[int], columns: Sequence[int], points: int) -> None:
        self.leads, self.columns = tuple(leads), list(columns)
        self._sums = np.zeros((3, len(self.leads), len(self.columns), points))  # number, error, its square

    def add(self, step: LeadTime) -> None:
        """Take in one lead time of a batch."""
        if step.lead not in self.leads:
            return
        row = self.leads.index(step.lead)
        error = (step.forecast[..., self.columns].double() - step.truth[..., self.columns]).numpy()  # [B, E, G, V]
        there = ~np.isnan(error)
        for which, term in enumerate((there, np.where(there, error, 0.0), np.where(there, error**2, 0.0))):
            self._sums[which, row] += term.sum(axis=(0, 1)).T

    @property
    def bias(self) -> NDArray[np.float64]:
        """Mean error [L, V, G]; NaN where nothing was compared."""
        return self._mean(1)

    @property
    def rmse(self) -> NDArray[np.float64]:
        """Root of the mean square error [L, V, G]."""
        return np.sqrt(self._mean(2))

    def _mean(self, which: int) -> NDArray[np.float64]:
        counts = self._sums[0]
        return np.divide(self._sums[which], counts, out=np.full(counts.shape, np.nan), where=counts > 0)


class FirstForecast:
    """The first forecast of the period: some variables at some lead times, first member.

    Attributes
    ----------
    dates : dict of int to datetime64
        Valid date of each lead time.
    truth, forecast, initial : dict of int to ndarray [V, G]
        Fields of each lead time.
    """

    def __init__(self, leads: Sequence[int], columns: Sequence[int]) -> None:
        self.leads, self.columns = tuple(leads), list(columns)
        self.dates: dict[int, np.datetime64] = {}
        self.truth: dict[int, NDArray[Any]] = {}
        self.forecast: dict[int, NDArray[Any]] = {}
        self.initial: dict[int, NDArray[Any]] = {}

    def add(self, step: LeadTime) -> None:
        """Take in one lead time of a batch; only the first batch counts."""
        if step.lead not in self.leads or step.lead in self.dates or not len(step.dates):
            return
        self.dates[step.lead] = step.dates[0]
        for name in ("truth", "forecast", "initial"):
            getattr(self, name)[step.lead] = getattr(step, name)[0, 0][:, self.columns].numpy().T.copy()
