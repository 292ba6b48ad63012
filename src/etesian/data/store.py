"""Write an anemoi dataset store (zarr v2): one date at a time, statistics on the way, all or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from anemoi.utils.dates import frequency_to_string, frequency_to_timedelta
from numpy.typing import ArrayLike, NDArray

from etesian.errors import Problem, UserError

SUFFIX = ".zarr"


class RunningStatistics:
    """Mean, standard deviation and extremes of each variable, over dates and points, in one pass.

    NaN do not count. Sums are kept in float64 about the mean so far and merged date by date
    (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", eq. 2.1),
    so that a large mean costs the deviation no digits.

    Parameters
    ----------
    num_variables : int
        V.
    """

    def __init__(self, num_variables: int) -> None:
        self._count = np.zeros(num_variables)
        self._mean = np.zeros(num_variables)
        self._squares = np.zeros(num_variables)  # sum of (x - mean)^2
        self._maximum = np.full(num_variables, -np.inf)
        self._minimum = np.full(num_variables, np.inf)

    def add(self, state: NDArray[np.floating], before: NDArray[np.floating] | None = None) -> None:
        """Add one date, or the change from one date to it.

        Parameters
        ----------
        state : numpy.ndarray
            Shape (V, G), the variables' own units.
        before : numpy.ndarray, optional
            The state (V, G) that is taken off first.
        """
        for variable, row in enumerate(state):  # one variable at a time: no copy of the whole state
            values = row.astype(np.float64)
            if before is not None:
                values -= before[variable]
            if np.isnan(values.sum()):
                values = values[~np.isnan(values)]
            if values.size:
                self._merge(variable, values)

    def _merge(self, variable: int, values: NDArray[np.float64]) -> None:
        count, mean = values.size, values.mean()
        self._maximum[variable] = max(self._maximum[variable], values.max())
        self._minimum[variable] = min(self._minimum[variable], values.min())
        values -= mean
        total = self._count[variable] + count
        shift = mean - self._mean[variable]
        self._squares[variable] += values @ values + shift**2 * self._count[variable] * count / total
        self._mean[variable] += shift * count / total
        self._count[variable] = total

    def result(self) -> dict[str, NDArray[np.float64]]:
        """Return ``mean``, ``stdev`` (population), ``maximum``, ``minimum``: (V,) each; NaN where no value was seen."""
        seen = self._count > 0

        def known(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.where(seen, values, np.nan)

        return {
            "mean": known(self._mean),
            "stdev": known(np.sqrt(self._squares / np.maximum(self._count, 1.0))),
            "maximum": known(self._maximum),
            "minimum": known(self._minimum),
        }


def check_target(path: Path, *, overwrite: bool) -> None:
    """Check that a store may be written to `path`, before the work that makes it.

    Raises
    ------
    UserError
        The name does not end in ``.zarr``; something is there and `overwrite` is false; or what is there
        is not a zarr store, which is never replaced.
    """
    if path.suffix != SUFFIX:
        raise UserError(
            f"the store's name {path.name!r} does not end in {SUFFIX}",
            where=str(path),
            allowed=f"a folder whose name ends in {SUFFIX}",
            mend=f"write to {path.name + SUFFIX}",
        )
    if not path.exists():
        return
    if not (path / ".zgroup").is_file():
        raise UserError(
            f"{path} exists and is not a zarr store, so it is not replaced",
            where=str(path),
            mend="choose another path, or remove it by hand",
        )
    if not overwrite:
        raise UserError(f"{path} exists", where=str(path), mend="choose another path, or pass --overwrite")


def write_store(
    path: Path,
    data: Iterable[NDArray[np.floating]],
    dates: ArrayLike,
    latitudes: ArrayLike,
    longitudes: ArrayLike,
    variables: Sequence[str],
    variables_metadata: Mapping[str, Mapping[str, Any]],
    frequency: str,
    attrs: Mapping[str, Any] | None = None,
    *,
    missing_dates: Iterable[np.datetime64] = (),
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write a gridded store that ``anemoi.datasets.open_dataset`` reads.

    The store is made in a hidden folder beside `path` and renamed when it is complete, so that a run that
    stops leaves no half store. Values are kept as float32; statistics are those of the values kept.

    Parameters
    ----------
    path : Path
        Where the store goes; the name ends in ``.zarr``.
    data : iterable of numpy.ndarray
        One array (V, G) a date, in the order of `dates`, physical units: an array (T, V, G), or a generator
        where the whole does not fit in memory. What a missing date holds is written as NaN.
    dates : array_like
        Shape (T,), datetime64, rising.
    latitudes, longitudes : array_like
        Shape (G,), degrees.
    variables : sequence of str
        The V names.
    variables_metadata : mapping
        For each variable what is known of it, such as ``{"units": "m s-1"}`` or ``{"computed_forcing": True}``.
    frequency : str
        Spacing of the dates (``6h``); nominal where months differ (``31d``).
    attrs : mapping, optional
        Further attributes of the store: ``resolution``, ``field_shape``, ``attribution``, ...
    missing_dates : iterable of numpy.datetime64
        Dates without data; they stay among `dates` and out of the statistics.
    overwrite : bool
        Replace the store that is there.
    progress : callable, optional
        Called with the number of dates written so far.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    UserError
        See :func:`check_target`; or what is handed over does not fit together.
    """
    check_target(path, overwrite=overwrite)
    dates = np.asarray(dates, dtype="datetime64[s]")
    latitudes, longitudes = np.asarray(latitudes, dtype=np.float64), np.asarray(longitudes, dtype=np.float64)
    missing = np.array(sorted(missing_dates), dtype="datetime64[s]")
    _check(path, dates, latitudes, longitudes, variables, variables_metadata, missing)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", suffix=".partial", dir=path.parent))
    try:
        store = zarr.open_group(str(partial / path.name), mode="w")
        step = frequency_to_string(frequency_to_timedelta(frequency))
        _write_data(store, data, dates, len(variables), len(latitudes), missing, step, progress)
        _write_array(store, "dates", dates, ["time"])
        _write_array(store, "latitudes", latitudes, ["cell"])
        _write_array(store, "longitudes", longitudes, ["cell"])
        store.attrs.update(
            {
                **(attrs or {}),
                "variables": list(variables),
                "variables_metadata": {name: dict(entry) for name, entry in variables_metadata.items()},
                "frequency": step,
                "constant_fields": sorted(
                    v for v, known in variables_metadata.items() if known.get("constant_in_time")
                ),
                "missing_dates": [str(date) for date in missing],
                "start_date": str(dates[0]),
                "end_date": str(dates[-1]),
                "ensemble_dimension": 2,
                "flatten_grid": True,
                "layout": "gridded",
            }
        )
        _move_into_place(partial / path.name, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def _check(
    path: Path,
    dates: NDArray[np.datetime64],
    latitudes: NDArray[np.float64],
    longitudes: NDArray[np.float64],
    variables: Sequence[str],
    variables_metadata: Mapping[str, Mapping[str, Any]],
    missing: NDArray[np.datetime64],
) -> None:
    problems = []
    if dates.ndim != 1 or len(dates) < 2 or not (np.diff(dates) > np.timedelta64(0, "s")).all():
        problems.append(Problem("a store needs at least two dates, each later than the one before", str(path)))
    if latitudes.ndim != 1 or latitudes.shape != longitudes.shape:
        shapes = f"{latitudes.shape} and {longitudes.shape}"
        problems.append(Problem(f"latitudes and longitudes are not two lists of one length: {shapes}", str(path)))
    if len(set(variables)) != len(variables):
        problems.append(Problem(f"variables are named twice: {list(variables)}", str(path)))
    if unknown := sorted(set(variables_metadata) - set(variables)):
        problems.append(Problem(f"metadata of variables that the store does not have: {unknown}", str(path)))
    if (strangers := missing[~np.isin(missing, dates)]).size:
        problems.append(Problem(f"missing dates outside the store's dates: {strangers}", str(path)))
    if problems:
        raise UserError.collect(problems)


def _write_data(
    store: zarr.Group,
    data: Iterable[NDArray[np.floating]],
    dates: NDArray[np.datetime64],
    num_variables: int,
    num_points: int,
    missing: NDArray[np.datetime64],
    step: str,
    progress: Callable[[int], None] | None,
) -> None:
    shape = (len(dates), num_variables, 1, num_points)  # T V E G
    array = store.create_dataset("data", shape=shape, chunks=(1, *shape[1:]), dtype="f4", fill_value=np.nan)
    array.attrs["_ARRAY_DIMENSIONS"] = ["time", "variable", "ensemble", "cell"]
    is_missing = np.isin(dates, missing)
    values, tendencies = RunningStatistics(num_variables), RunningStatistics(num_variables)
    before: NDArray[np.float32] | None = None
    written = 0
    for state in data:
        if written == len(dates):
            raise UserError(f"there are {len(dates)} dates and more states than that", where=store.store.path)
        if np.shape(state) != (num_variables, num_points):
            raise UserError(
                f"the state of {dates[written]} has shape {np.shape(state)}",
                allowed=f"(variables, points) = {(num_variables, num_points)}",
            )
        kept = np.asarray(state, dtype=np.float32)
        if not is_missing[written]:
            array[written, :, 0, :] = kept
            values.add(kept)
            if before is not None:
                tendencies.add(kept, before)
            before = kept if kept is not state else kept.copy()  # the iterator may use its array again
        else:
            before = None
        written += 1
        if progress is not None:
            progress(written)
    if written != len(dates):
        raise UserError(f"there are {len(dates)} dates and only {written} states")
    for name, statistic in values.result().items():
        _write_array(store, name, statistic, ["variable"])
    for name, statistic in tendencies.result().items():
        _write_array(store, f"statistics_tendencies_{step}_{name}", statistic, ["variable"])


def _write_array(store: zarr.Group, name: str, values: NDArray[Any], dimensions: list[str]) -> None:
    array = store.create_dataset(name, data=values, shape=values.shape, chunks=values.shape, dtype=values.dtype)
    array.attrs["_ARRAY_DIMENSIONS"] = dimensions


def _move_into_place(made: Path, path: Path) -> None:
    if path.exists():
        replaced = made.with_name("replaced")  # goes with the hidden folder
        os.rename(path, replaced)
        try:
            os.rename(made, path)
        except OSError:
            os.rename(replaced, path)
            raise
    else:
        os.rename(made, path)
