"""The period that is evaluated and the training period behind its references, opened and compared with a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from etesian.data.description import step_of, units_in, units_of
from etesian.data.gridded import GriddedDataset
from etesian.data.history import earlier
from etesian.data.open import open_split, open_whole
from etesian.data.period import spacing_of
from etesian.errors import Problem, UserError, did_you_mean
from etesian.inference.climatology import check_coverage
from etesian.inference.forecast import check_grid
from etesian.inference.forecaster import Forecaster
from etesian.inference.references import ReferenceSet, fit_references
from etesian.schema.config import Config
from etesian.schema.dataloader import SplitSettings
from etesian.schema.diagnostics import ScoresSettings

_OPTIONS = {
    "smaller task.multistep_input or diagnostics.scores.lead_times": "a shorter --lead-time",
    "--dataset.dataset": "--dataset",
    "dataloader.test.dataset_config.dataset": "--dataset", "dataloader.test.dataset_config": "--dataset",
    "dataloader.test.start": "--start", "dataloader.test.end": "--end",
    "diagnostics.scores.lead_times": "--lead-time", "diagnostics.scores.allow_large=true": "--allow-large",
    "diagnostics.scores.climatology_file": "--climatology-file", "diagnostics.scores.climatology": "--climatology",
    "system.input.dataset": "--dataset",
}  # fmt: skip
"""Options of the command by the config's keys that they stand for; longer keys first."""


@dataclass(frozen=True)
class Period:
    """What is evaluated.

    Attributes
    ----------
    dataset : str, optional
        Path of another dataset than the run's own test data.
    start, end : str, optional
        First and last date that is forecast. Left out, they are those of the config's test period, or with `dataset`
        its first and last.
    """

    dataset: str | None = None
    start: str | None = None
    end: str | None = None


def open_period(forecaster: Forecaster, config: Config, period: Period, cache_dir: Path) -> tuple[GriddedDataset, int]:
    """Open the dates to evaluate, and the initial states before them.

    Parameters
    ----------
    forecaster : Forecaster
        With its ``about``.
    config : Config
        That of the checkpoint.
    period : Period
        What is asked for.
    cache_dir : Path
        The user's cache folder.

    Returns
    -------
    dataset : GriddedDataset
        Variables in the order of the forecaster's.
    stride : int
        Dates of the dataset in one step of the model.

    Raises
    ------
    UserError
        For dates that the data do not hold, missing variables, other units, another grid or another spacing.
    """
    names = list(forecaster.variables.names)
    own = config.dataloader.test
    try:
        if period.dataset is None:
            split = own.model_copy(update={key: value for key in ("start", "end") if (value := getattr(period, key))})
        else:
            _check_variables(open_whole({"dataset": period.dataset}, cache_dir, "--dataset"), names)
            options = {"dataset": period.dataset, "select": names}
            split = SplitSettings(dataset_config=options, start=period.start, end=period.end)
        dataset = open_split("test", split, cache_dir)
        _check_variables(dataset, names)
        _check_units(dataset, forecaster)
        check_grid(dataset, {name: value.numpy() for name, value in forecaster.about["coordinates"].items()})
        stride = _stride(dataset, forecaster)
        return earlier("test", dataset, split, cache_dir, stride * forecaster.multistep_input), stride
    except UserError as error:
        raise in_options(error) from error


def open_references(
    config: Config, settings: ScoresSettings, forecaster: Forecaster, dates: Any, stride: int, cache_dir: Path
) -> ReferenceSet:
    """Fit the references on the training period of the checkpoint, or read the climatology.

    Parameters
    ----------
    config : Config
        That of the checkpoint.
    settings : ScoresSettings
        Which climatology, and how many lead times.
    forecaster : Forecaster
        With its ``about``.
    dates : array (T,)
        Dates that are evaluated.
    stride : int
        Dates in one step of the model.
    cache_dir : Path
        The user's cache folder.

    Raises
    ------
    UserError
        For training data that are not there, are too large, or lack a month or day; and as
        :func:`etesian.inference.references.fit_references`.
    """
    if settings.climatology == "none":
        return ReferenceSet()
    try:
        training = open_split("training", config.dataloader.training, cache_dir)
        _check_variables(training, list(forecaster.variables.names), "dataloader.training.dataset_config")
        _check_units(training, forecaster, "dataloader.training.dataset_config")
        if settings.climatology_file is None:
            check_coverage(settings.climatology, training.dates, dates)
        return fit_references(
            training, settings, forecaster.variables.output, step=stride, units=units_of(training)
        )  # fmt: skip
    except UserError as error:
        told = in_options(error)
        mend = "make the training data of the checkpoint available there, or --climatology none: no ACC, no climatology"
        problems = [
            replace(problem, mend=mend) if (problem.where or "").startswith("dataloader.training") else problem
            for problem in told.problems
        ]
        raise UserError.collect(problems) from error


def in_options(error: UserError) -> UserError:
    """Return an error of the config's keys as one of the command's options."""
    problems = []
    for problem in error.problems:
        texts = {name: getattr(problem, name) for name in ("what", "where", "allowed", "mend")}
        for key, option in _OPTIONS.items():
            texts = {name: text.replace(key, option) if text else text for name, text in texts.items()}
        problems.append(Problem(**texts))
    return UserError.collect(problems)


def training_dates(forecaster: Forecaster, dates: Any) -> int:
    """Return how many dates lie in the training period of the checkpoint."""
    about = forecaster.about["dataset"]
    first, last = (np.datetime64(about[name]) for name in ("first", "last"))
    return int(((dates >= first) & (dates <= last)).sum())


def _check_variables(dataset: GriddedDataset, names: list[str], where: str = "--dataset") -> None:
    held = list(dataset.variables)
    missing = [name for name in names if name not in held]
    if missing:
        raise UserError(
            f"the dataset lacks {', '.join(missing)}, which the model reads or is scored by",
            where=where, allowed=f"the dataset's variables: {', '.join(held)}", mend=did_you_mean(missing[0], held),
        )  # fmt: skip
    if where != "--dataset" and held != names:
        raise UserError("the training data have other variables than when the model was trained", where=where)


def _check_units(dataset: GriddedDataset, forecaster: Forecaster, where: str = "--dataset") -> None:
    trained = units_in(forecaster.about["dataset"]["metadata"].get("variables_metadata", {}))
    here = units_of(dataset)
    problems = [
        Problem(f"{name} is in {here[name]!r} in the dataset, and was in {trained[name]!r} in training", where=where,
                mend="a dataset in the units of the training")
        for name in forecaster.variables.names
        if name in here and name in trained and here[name] != trained[name]
    ]  # fmt: skip
    if problems:
        raise UserError.collect(problems)


def _stride(dataset: GriddedDataset, forecaster: Forecaster) -> int:
    step, spacing = step_of(forecaster.about["dataset"]), spacing_of(dataset.dates, "--dataset")
    if spacing is None:
        raise UserError("the period holds one date, and no forecast", where="--start, --end", mend="a longer period")
    unit, other = (step.months, spacing.months) if step.months else (step.seconds, spacing.seconds)
    if not other or unit % other:
        what = f"the dates are {spacing} apart, and one step of the model is {step}"
        raise UserError(what, where="--dataset", allowed=f"dates {step} apart, or a whole part of it")
    return unit // other
