"""One forecast from one date: what has to be read, computed and checked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from etesian.data.description import step_of
from etesian.data.forcings import OF_HOUR, OF_PLACE, OF_SEASON, computed
from etesian.data.gridded import GriddedDataset
from etesian.data.period import Spacing, seconds_of
from etesian.errors import Problem, UserError
from etesian.inference.forecaster import Forecaster

COMPUTED_TOLERANCE = 1e-3
"""How far a forcing of the dataset may be from its formula; those computed here lie between -1 and 1."""

_MONTHS = re.compile(r"([0-9]+)(mo|months?)")


@dataclass(frozen=True)
class Forecast:
    """A forecast.

    Attributes
    ----------
    values : array (L, E, G, V_out)
        Physical units, float32.
    variables : tuple of str
        Names of the last axis.
    start : numpy.datetime64
        The newest initial state's date.
    dates : array (L,)
        Valid dates.
    latitudes, longitudes : array (G,)
        Degrees.
    metadata : mapping
        ``variables_metadata`` of the training dataset.
    """

    values: NDArray[np.float32]
    variables: tuple[str, ...]
    start: np.datetime64
    dates: NDArray[np.datetime64]
    latitudes: NDArray[np.float64]
    longitudes: NDArray[np.float64]
    metadata: Mapping[str, Mapping[str, Any]]


def steps_in(lead_time: str, step: Spacing) -> int:
    """Return how many steps of the model a lead time is: ``120h``, ``5d``; ``6mo`` for a step of calendar months.

    Raises
    ------
    UserError
        If it is no such duration, or no multiple of the step.
    """
    where, allowed = "--lead-time", f"{step} and its multiples"
    if step.months:
        found = _MONTHS.fullmatch(lead_time)
        months = int(found[1]) if found else 0
        if months == 0:
            what = f"--lead-time {lead_time} is no number of months, and one step of the model is {step}"
            raise UserError(what, where=where, allowed=f"{allowed}, such as {6 * step.months}mo")
        whole, rest = divmod(months, step.months)
    else:
        whole, rest = divmod(seconds_of(lead_time, where), step.seconds)
    if rest:
        what = f"--lead-time {lead_time} is no multiple of the model's step of {step}"
        raise UserError(what, where=where, allowed=allowed)
    return whole


def run_forecast(
    forecaster: Forecaster, dataset: GriddedDataset, start: np.datetime64, steps: int, device: torch.device
) -> Forecast:
    """Forecast from one date.

    Initial states come from the dataset. At later dates a forcing that the metadata mark ``constant_in_time`` keeps its
    value, one that they mark ``computed_forcing`` is computed as the Anemoi tools do, and any other is read.

    Parameters
    ----------
    forecaster : Forecaster
        With its ``about``.
    dataset : GriddedDataset
        What holds the initial states: the grid of the training, and every input variable, in any order.
    start : numpy.datetime64
        Date of the newest initial state.
    steps : int
        Number of states to forecast.
    device : torch.device
        Where to run.

    Raises
    ------
    UserError
        For another grid, missing variables or dates, NaNs that nothing fills, and forcings that can't be known or are
        not what the Anemoi tools compute.
    """
    about, first = forecaster.about, forecaster.multistep_input
    step, variables = step_of(about["dataset"]), forecaster.variables
    places = {name: values.numpy() for name, values in about["coordinates"].items()}
    metadata = about["dataset"]["metadata"].get("variables_metadata", {})
    check_grid(dataset, places)
    positions = _positions(dataset, variables.input)
    dates = np.array([step.after(start, number) for number in range(1 - first, steps + 1)])
    source = _Source(dataset, positions)
    x = np.zeros((len(dates) - 1, dataset.shape[2], places["latitudes"].size, len(variables.names)), np.float32)
    columns = dict(zip(variables.input, variables.data_input, strict=True))
    for number, date in enumerate(dates[:first]):
        state = source.read(date, list(variables.input), "initial state")
        for name, field in state.items():
            x[number, ..., columns[name]] = field
    kinds = _kinds(variables.forcing, metadata, step)
    for name in kinds["computed"]:
        _check_formula(name, dates[first - 1], x[first - 1, ..., columns[name]], places)
    for number, date in enumerate(dates[first:-1], start=first):
        for name in kinds["constant"]:
            x[number, ..., columns[name]] = x[first - 1, ..., columns[name]]
        for name in kinds["computed"]:
            x[number, ..., columns[name]] = computed(name, date, places["latitudes"], places["longitudes"])
        if kinds["read"]:
            for name, field in source.read(date, kinds["read"], "forcings").items():
                x[number, ..., columns[name]] = field
    try:
        values = forecaster.to(device).rollout(torch.from_numpy(x)[None].to(device), steps)[0]
    except ValueError as cause:
        raise UserError(f"the forecast can't start from {start}: {cause}", where="--date") from cause
    return Forecast(
        values.float().cpu().numpy(), variables.output, start, dates[first:], places["latitudes"],
        places["longitudes"], metadata,
    )  # fmt: skip


class _Source:
    """Fields of a dataset by date and name."""

    def __init__(self, dataset: GriddedDataset, positions: Mapping[str, int]) -> None:
        self.dataset, self.positions = dataset, positions
        self.dates = dataset.dates.astype("datetime64[s]")

    def read(self, date: np.datetime64, names: list[str], use: str) -> dict[str, NDArray[np.float32]]:
        """Return fields (E, G) of one date.

        Raises
        ------
        UserError
            If the dataset has no such date.
        """
        found = np.flatnonzero(self.dates == date)
        if not found.size or int(found[0]) in self.dataset.missing:
            what = f"the dataset has no {date}, which the forecast needs for its {use}"
            if use == "forcings":
                what += f": {', '.join(names)}, which can't be computed"
            raise UserError(what, where="--date", allowed=f"the data covers {self.dates[0]} to {self.dates[-1]}",
                            mend=None if found.size else self._nearest(date))  # fmt: skip
        try:
            state = np.asarray(self.dataset[int(found[0])], dtype=np.float32)  # [V, E, G]
        except Exception as cause:  # whatever a damaged store or a lost connection raises
            text = " ".join(f"{type(cause).__name__} {cause}".split())
            raise UserError(f"the data at {date} cannot be read: {text}", where="--dataset") from cause
        return {name: state[self.positions[name]] for name in names}

    def _nearest(self, date: np.datetime64) -> str:
        return f"the nearest date is {self.dates[np.abs(self.dates - date).argmin()]}"


def check_grid(dataset: GriddedDataset, places: Mapping[str, NDArray[np.float64]]) -> None:
    """Check that a dataset has the points of a model, ``latitudes`` and ``longitudes`` in degrees.

    Raises
    ------
    UserError
        If it has others, or in another order.
    """
    points, needed = dataset.latitudes.size, places["latitudes"].size
    if points != needed:
        what = f"the dataset has {points:,} grid points, the model {needed:,}"
    elif not all(np.allclose(getattr(dataset, name), values, atol=1e-4) for name, values in places.items()):
        what = "the grid points of the dataset are not those of the model, or in another order"
    else:
        return
    raise UserError(what, where="--dataset", mend="a dataset on the grid of the training")


def _positions(dataset: GriddedDataset, names: tuple[str, ...]) -> dict[str, int]:
    held = list(dataset.variables)
    if missing := [name for name in names if name not in held]:
        what = f"the dataset lacks {', '.join(missing)}, which the model reads"
        raise UserError(what, where="--dataset", allowed=f"the dataset's variables: {', '.join(held)}")
    return {name: held.index(name) for name in names}


def _kinds(forcings: tuple[str, ...], metadata: Mapping[str, Any], step: Spacing) -> dict[str, list[str]]:
    """Tell which forcings stay, which are computed and which are read at later dates.

    Of data that are months apart, the forcings of the hour are means over a month, which no formula here gives.
    """
    known = {*OF_PLACE, *OF_SEASON, *(() if step.months else OF_HOUR)}
    kinds: dict[str, list[str]] = {"constant": [], "computed": [], "read": []}
    for name in forcings:
        entry = metadata.get(name, {})
        constant = entry.get("constant_in_time")
        kind = "constant" if constant else "computed" if entry.get("computed_forcing") and name in known else "read"
        kinds[kind].append(name)
    return kinds


def _check_formula(
    name: str, date: np.datetime64, field: NDArray[np.float32], places: Mapping[str, NDArray[np.float64]]
) -> None:
    apart = float(np.abs(field - computed(name, date, places["latitudes"], places["longitudes"])).max())
    if not apart <= COMPUTED_TOLERANCE:
        problem = Problem(
            f"{name!r} of the dataset is {apart:.2g} apart from what the Anemoi tools compute at {date}, which later "
            "dates would be given",
            where="--dataset", allowed=f"at most {COMPUTED_TOLERANCE:g} apart",
            mend="make the dataset again, or take computed_forcing out of the variable's metadata and train again",
        )  # fmt: skip
        raise UserError.collect([problem])
