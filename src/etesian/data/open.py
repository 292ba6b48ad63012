"""Opening of the training, validation and test datasets, with every check that can be made at the door."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from etesian.data.gridded import GriddedDataset
from etesian.data.period import check_covered, common_period, seconds_of, spacing_of
from etesian.data.source import find_stores
from etesian.data.windows import nan_problem
from etesian.errors import Problem, UserError
from etesian.schema.data import DataSettings
from etesian.schema.dataloader import DataloaderSettings, SplitSettings

logger = logging.getLogger(__name__)

SplitName = Literal["training", "validation", "test"]


@dataclass(frozen=True)
class Splits:
    """The three datasets. Statistics are to be taken from `training`.

    anemoi-datasets keeps the statistics that were computed when the store was made, over the period chosen then;
    a split by date does not change them.
    """

    training: GriddedDataset
    validation: GriddedDataset
    test: GriddedDataset

    def items(self) -> list[tuple[str, GriddedDataset]]:
        """Return (name, dataset) of each split."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def open_splits(dataloader: DataloaderSettings, data: DataSettings, cache_dir: Path) -> Splits:
    """Open the three splits and check that they belong together.

    Parameters
    ----------
    dataloader : DataloaderSettings
        Section ``dataloader``.
    data : DataSettings
        Section ``data``; its imputer says which variables may hold NaNs.
    cache_dir : Path
        The user's cache folder.

    Raises
    ------
    UserError
        See :func:`open_split`; for splits whose variables, grids or spacings differ, or are not ``data.frequency``,
        or that share dates; and for NaNs, in the statistics or at a split's first date, in a variable that has no
        imputer.
    """
    splits = Splits(
        training=open_split("training", dataloader.training, cache_dir),
        validation=open_split("validation", dataloader.validation, cache_dir),
        test=open_split("test", dataloader.test, cache_dir),
    )
    problems = _unlike_frequency(splits, data.frequency) + _differences(splits) + _overlaps(splits)
    if problems:
        raise UserError.collect(problems)
    imputer = data.processors.imputer
    imputed = {*imputer.mean, *imputer.constant}
    problems = [problem for name, dataset in splits.items() for problem in _nans_at_the_door(name, dataset, imputed)]
    if problems:
        raise UserError.collect(problems)
    return splits


def open_split(name: SplitName, split: SplitSettings, cache_dir: Path) -> GriddedDataset:
    """Open one split through ``anemoi.datasets.open_dataset``.

    Parameters
    ----------
    name : str
        Name of the split, for the errors.
    split : SplitSettings
        Options of ``open_dataset`` (those that are null are left out) and the period.
    cache_dir : Path
        The user's cache folder, where embedded datasets are made.

    Raises
    ------
    UserError
        For a store that is not there or lacks something, an option or variable that does not exist, a period that
        the data does not cover, and dates that are not evenly spaced.
    """
    key = f"dataloader.{name}"
    options = {option: value for option, value in split.dataset_config.items() if value is not None}
    if not options:
        raise UserError(f"{key}.dataset_config names no dataset", where=f"{key}.dataset_config",
                        mend="system.input.dataset=/path/to/dataset.zarr")  # fmt: skip
    period, keys = _period(split, options, key)
    options = find_stores(options, cache_dir, f"{key}.dataset_config")
    where = f"{key}.dataset_config"
    whole = _open({option: value for option, value in options.items() if option != "frequency"}, where)
    _check_order(whole.dates, where)
    check_covered(whole.dates, period, keys)
    dataset = _open(options | {side: value for side, value in period.items() if value is not None}, where)
    if len(dataset.dates) == 0:
        raise UserError(f"the {name} split holds no date", where=f"{keys['start']}, {keys['end']}",
                        allowed=f"the data covers {whole.dates[0]} to {whole.dates[-1]}")  # fmt: skip
    spacing_of(dataset.dates, key)
    if dataset.missing:
        logger.info("%s: %d of %d dates are missing", name, len(dataset.missing), len(dataset))
    return dataset


def open_whole(options: Mapping[str, Any], cache_dir: Path, where: str) -> GriddedDataset:
    """Open a dataset with all its dates, whatever its use.

    Parameters
    ----------
    options : mapping
        Options of ``open_dataset``; those that are null, ``start`` and ``end`` are left out.
    cache_dir : Path
        The user's cache folder, where embedded datasets are made.
    where : str
        What names the dataset, for the errors.

    Raises
    ------
    UserError
        For a store that is not there or lacks something, and dates that are not in order.
    """
    given = {name: value for name, value in options.items() if value is not None and name not in ("start", "end")}
    dataset = _open(find_stores(given, cache_dir, where), where)
    _check_order(dataset.dates, where)
    return dataset


def _check_order(dates: NDArray[np.datetime64], where: str) -> None:
    """Check that the dates are dates, each after the one before."""
    wrong = np.flatnonzero(~(dates[1:] > dates[:-1]))  # catches dates that are none too
    if wrong.size:
        raise UserError(
            f"the dates are not in order: {dates[wrong[0]]} is followed by {dates[wrong[0] + 1]}",
            where=where,
            mend="make the dataset again; anemoi-datasets writes dates in order",
        )


def _period(
    split: SplitSettings, options: dict[str, Any], key: str
) -> tuple[dict[str, str | int | None], dict[str, str]]:
    """Take start and end out of the split or its options; return them and the config keys they came from."""
    period: dict[str, str | int | None] = {}
    keys = {}
    for side in ("start", "end"):
        own = getattr(split, side)
        if own is not None and side in options:
            raise UserError(
                f"{side} is given twice: {own!r} and {options[side]!r}",
                where=f"{key}.{side}, {key}.dataset_config.{side}",
                mend=f"keep {key}.{side}",
            )
        keys[side] = f"{key}.dataset_config.{side}" if side in options else f"{key}.{side}"
        period[side] = options.pop(side, own)
    return period, keys


def _open(options: Mapping[str, Any], where: str) -> GriddedDataset:
    """Open a dataset, read what is needed of it once, and turn any failure into an error that keeps its text."""
    from anemoi.datasets import open_dataset

    _report_from_a_thread()
    try:
        dataset = open_dataset(**options)
        sizes = (len(dataset.dates), len(dataset.variables), dataset.latitudes.size, len(dataset.statistics["mean"]))
        shape = tuple(int(size) for size in dataset.shape)
        dataset.missing  # noqa: B018  (some datasets cannot tell)
    except Exception as cause:  # open_dataset raises whatever it meets: ValueError, KeyError, AssertionError, ...
        raise _refused(cause, options, where) from cause
    if len(shape) != 4 or sizes != (shape[0], shape[1], shape[3], shape[1]):
        raise UserError(
            f"the dataset has shape {shape}, and {sizes[0]} dates, {sizes[1]} variables, {sizes[2]} points, "
            f"statistics of {sizes[3]} variables",
            where=where, allowed="shape (dates, variables, ensemble members, points)",
        )  # fmt: skip
    return cast("GriddedDataset", dataset)


def _report_from_a_thread() -> None:
    """Let anemoi-datasets report the stores it opens, to users who chose that, from a thread.

    By itself it forks a process for it. That one copies the run's memory, outlives a run that is killed, and keeps
    the run's output open, so that whoever reads it waits for ever.
    """
    from anemoi.datasets.usage import analytics

    executor: Any = getattr(analytics, "_executor", None)
    if isinstance(executor, ProcessPoolExecutor):
        executor.shutdown(wait=False)
        setattr(analytics, "_executor", ThreadPoolExecutor(max_workers=1))  # noqa: B010 - mypy knows its first type


def _refused(cause: Exception, options: Mapping[str, Any], where: str) -> UserError:
    text = str(cause) or type(cause).__name__
    if isinstance(cause, NotImplementedError) and text.startswith("Unsupported arguments: "):
        unknown = text.removeprefix("Unsupported arguments: ")
        return UserError(
            f"open_dataset of anemoi-datasets has no option {unknown!r}, or not beside the others",
            where=f"{where}.{unknown}" if unknown in options else where,
            allowed="the options of anemoi.datasets.open_dataset: dataset, start, end, frequency, select, drop, "
            "rename, reorder, join, concat, ...",
            mend="correct or remove it",
        )
    if isinstance(cause, (AssertionError, KeyError)):  # their text is a bare name, if anything
        text = f"{type(cause).__name__} {text}" if str(cause) else "an assertion failed"
    given = ", ".join(f"{option}: {value}" for option, value in options.items())
    return UserError(f"anemoi-datasets cannot open the dataset: {text}", where=where, mend=f"look at: {given}")


def _unlike_frequency(splits: Splits, frequency: str | None) -> list[Problem]:
    """Check that the dates are ``data.frequency`` apart, where that is given."""
    if frequency is None:
        return []
    return [
        Problem(
            f"data.frequency is {frequency!r}, but the {name} dates are {spacing} apart",
            where=f"data.frequency, dataloader.{name}.dataset_config",
            allowed="null: the dataset's own",
            mend="data.frequency=null" if spacing.months else f"dataloader.{name}.dataset_config.frequency={frequency}",
        )
        for name, dataset in splits.items()
        if (spacing := spacing_of(dataset.dates, f"dataloader.{name}")) is not None
        and (spacing.months or spacing.seconds != seconds_of(frequency, "data.frequency"))
    ]


def _differences(splits: Splits) -> list[Problem]:
    """Compare the validation and test datasets with the training dataset."""
    problems = []
    training = splits.training
    spacing = spacing_of(training.dates, "dataloader.training")
    for name, dataset in splits.items()[1:]:
        where = f"dataloader.training.dataset_config, dataloader.{name}.dataset_config"
        if list(dataset.variables) != list(training.variables):
            problems.append(Problem(_unlike(name, dataset.variables, training.variables), where=where))
        for axis in ("latitudes", "longitudes"):
            if not np.array_equal(getattr(dataset, axis), getattr(training, axis), equal_nan=True):
                problems.append(Problem(f"the {name} grid is not the training grid: {axis} differ", where=where))
                break
        if dataset.shape[2] != training.shape[2]:
            problems.append(
                Problem(f"{dataset.shape[2]} ensemble members in {name}, {training.shape[2]} in training", where=where)
            )
        other = spacing_of(dataset.dates, f"dataloader.{name}")
        if None not in (other, spacing) and other != spacing:
            problems.append(Problem(f"the dates are {other} apart in {name}, {spacing} in training", where=where))
    return problems


def _unlike(name: str, these: Sequence[str], training: Sequence[str]) -> str:
    lacks = [variable for variable in training if variable not in these]
    more = [variable for variable in these if variable not in training]
    if not (lacks or more):
        return f"the {name} variables are those of training in another order"
    parts = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has besides {', '.join(more)}"] * bool(more)
    return f"the {name} dataset {' and '.join(parts)}, unlike the training dataset"


def _overlaps(splits: Splits) -> list[Problem]:
    problems = []
    for (a, first), (b, second) in itertools.combinations(splits.items(), 2):
        common = common_period(first.dates, second.dates)
        if common is not None:
            begin, end, count = common
            problems.append(
                Problem(
                    f"the {a} and {b} splits share {count} dates, {begin} to {end}",
                    where=f"dataloader.{a}, dataloader.{b}",
                    allowed="periods without a common date",
                    mend=f"move dataloader.{a}.end or dataloader.{b}.start",
                )
            )
    return problems


def _nans_at_the_door(name: str, dataset: GriddedDataset, imputed: set[str]) -> list[Problem]:
    """Look for NaNs in the statistics and at the split's first date that is not missing."""
    there = next((index for index in range(len(dataset)) if index not in dataset.missing), None)
    if there is None:
        return [Problem(f"every date of the {name} split is missing", where=f"dataloader.{name}")]
    try:
        counts = np.isnan(dataset[there]).sum(axis=(1, 2))  # (V, E, G) -> (V,)
    except Exception as cause:  # whatever a damaged store or a lost connection raises
        what = f"the {name} data at {dataset.dates[there]} cannot be read: {type(cause).__name__} {cause}"
        return [Problem(" ".join(what.split()), where=f"dataloader.{name}.dataset_config")]
    unknown = np.isnan(sum(dataset.statistics.values()))  # (V,)
    problems = []
    for variable, count, no_statistics in zip(dataset.variables, counts, unknown, strict=True):
        if variable not in imputed and count:
            problems.append(nan_problem(variable, str(dataset.dates[there]), int(count), name))
        elif variable not in imputed and no_statistics:
            problems.append(nan_problem(variable, "some date, as its statistics say", None, name))
    return problems
