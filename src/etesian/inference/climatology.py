"""Climatology: the mean of the training period by calendar month or day of the year.

Shapes: T dates, E ensemble members, G grid points, V variables, K groups (12 months or 366 days).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from etesian.errors import Problem, UserError, did_you_mean

Kind = Literal["monthly", "daily"]

GROUPS: dict[str, int] = {"monthly": 12, "daily": 366}
"""Number of groups of each kind."""

SIZE_LIMIT = 20 * 10**9
"""Bytes of a training period above which a pass over it must be asked for."""

DEFAULT_WINDOW = 31
"""Days that the smoothing of a daily climatology spans."""

KEY = "diagnostics.scores.climatology"
_MONTHS = ("January", "February", "March", "April", "May", "June", "July",
           "August", "September", "October", "November", "December")  # fmt: skip


class FieldSeries(Protocol):
    """What is asked of a dataset; an opened anemoi dataset has it all."""

    @property
    def dates(self) -> Any:
        """Dates (T,) as datetime64."""

    @property
    def missing(self) -> Any:
        """Positions of the dates that cannot be read."""

    @property
    def variables(self) -> Any:
        """Names (V,)."""

    @property
    def shape(self) -> Any:
        """Lengths (T, V, E, G)."""

    @property
    def latitudes(self) -> Any:
        """Latitudes (G,), degrees."""

    @property
    def longitudes(self) -> Any:
        """Longitudes (G,), degrees."""

    def __getitem__(self, index: int, /) -> Any:
        """Fields [V, E, G] of one date."""


@dataclass(frozen=True)
class Climatology:
    """Mean fields of the training period.

    Attributes
    ----------
    kind : {"monthly", "daily"}
        Groups: calendar months, or days of the year counted from 1 January.
    mean : ndarray [K, V, G], float32
        Mean of each group, physical units; NaN where the training period never has a value.
    covered : ndarray (K,), bool
        Groups that the training period has dates for.
    variables : tuple of str
        Names along V.
    latitudes, longitudes : ndarray (G,)
        Degrees.
    window : int
        Days that the smoothing spans; 1 (none) for a monthly climatology.
    period : tuple of str
        First and last date of the training period.

    Notes
    -----
    The ensemble members of a dataset count as further samples of the same climate, and dates of
    one day at different hours as further samples of that day.
    """

    kind: Kind
    mean: NDArray[np.float32]
    covered: NDArray[np.bool_]
    variables: tuple[str, ...]
    latitudes: NDArray[np.float64]
    longitudes: NDArray[np.float64]
    window: int
    period: tuple[str, str]

    def __post_init__(self) -> None:
        expected = (GROUPS[self.kind], len(self.variables), len(self.latitudes))
        if self.mean.shape != expected or self.covered.shape != expected[:1]:
            raise ValueError(f"a {self.kind} climatology needs means {expected}, not {self.mean.shape}")

    def at(self, dates: Any) -> NDArray[np.float32]:
        """Return the climatology of some dates.

        Parameters
        ----------
        dates : array_like (T,) of datetime64
            Dates in any order.

        Returns
        -------
        ndarray [T, 1, G, V]
            One member, which broadcasts over an ensemble.

        Raises
        ------
        UserError
            When the training period has no date in one of the months or days asked for.
        """
        groups = group_of(self.kind, dates)
        _require_covered(self.kind, self.covered, groups)
        return self.mean[groups].transpose(0, 2, 1)[:, None]  # [T, V, G] -> [T, 1, G, V]

    def select(self, variables: Sequence[str]) -> Climatology:
        """Return the climatology of these variables, in this order."""
        positions = _positions(self.variables, variables)
        return Climatology(
            self.kind, self.mean[:, positions], self.covered, tuple(variables),
            self.latitudes, self.longitudes, self.window, self.period,
        )  # fmt: skip


def group_of(kind: Kind, dates: Any) -> NDArray[np.intp]:
    """Return the group (0 to K - 1) of each date: month - 1, or day of the year - 1."""
    dates = np.atleast_1d(np.asarray(dates, dtype="datetime64[s]"))
    if kind == "monthly":
        return (dates.astype("datetime64[M]").astype(np.intp)) % 12
    days = dates.astype("datetime64[D]") - dates.astype("datetime64[Y]").astype("datetime64[D]")
    return days.astype(np.intp)


def fit_climatology(
    dataset: FieldSeries,
    kind: Kind,
    variables: Sequence[str] | None = None,
    *,
    window: int = DEFAULT_WINDOW,
    allow_large: bool = False,
) -> Climatology:
    """Average a training period in one pass, one date at a time.

    Parameters
    ----------
    dataset : FieldSeries
        The training period; dates in ``dataset.missing`` are passed over.
    kind : {"monthly", "daily"}
        Groups of the mean.
    variables : sequence of str, optional
        Those that are wanted; all of them when left out.
    window : int
        Odd number of days. A daily climatology is the mean of all dates within ``window // 2``
        days of a day of the year, across the turn of the year too, each date with the same
        weight; 1 smooths nothing. It lowers the amplitude of an annual cycle by 1.2% at 31 days
        (a running mean of width w multiplies a cycle of period P by sin(pi w / P) / (pi w / P)).
    allow_large : bool
        Read a training period over `SIZE_LIMIT` too.

    Returns
    -------
    Climatology
        Means that leave out NaN, point by point.

    Raises
    ------
    UserError
        When the training period is over `SIZE_LIMIT` and `allow_large` is false, when it has no
        readable date, or when a variable is not in it.

    Notes
    -----
    Memory: K x V x G sums in float64 (V: the variables wanted), the result in float32, and one
    date of the dataset; as many 32-bit counts again once a NaN is met.
    """
    if window < 1 or window % 2 == 0:
        raise ValueError(f"the smoothing window must be an odd number of days, not {window}")
    check_size(dataset, allow_large=allow_large)
    names = tuple(dataset.variables if variables is None else variables)
    positions = _positions(tuple(dataset.variables), names)
    shape = (GROUPS[kind], len(names), int(dataset.shape[3]))
    total = np.zeros(shape)
    dates_in = np.zeros(shape[0], dtype=np.int64)  # values a group has where nothing is NaN
    holes: NDArray[np.int32] | None = None
    groups = group_of(kind, dataset.dates)
    for index in readable(dataset):
        field = np.asarray(dataset[index])[positions].astype(np.float64)  # [V, E, G]
        gaps = np.isnan(field)
        if gaps.any():
            holes = np.zeros(shape, dtype=np.int32) if holes is None else holes
            holes[groups[index]] += gaps.sum(axis=1, dtype=np.int32)
            field[gaps] = 0.0
        total[groups[index]] += field.sum(axis=1)
        dates_in[groups[index]] += field.shape[1]
    span = window if kind == "daily" else 1
    mean, covered = _means(total, dates_in, holes, span)
    dates = np.asarray(dataset.dates)
    return Climatology(
        kind, mean, covered, names, np.asarray(dataset.latitudes, dtype=np.float64),
        np.asarray(dataset.longitudes, dtype=np.float64), span, (str(dates[0]), str(dates[-1])),
    )  # fmt: skip


def readable(dataset: FieldSeries) -> Iterator[int]:
    """Yield the positions of the dates that can be read, in order."""
    missing = {int(index) for index in dataset.missing}
    positions = [index for index in range(int(dataset.shape[0])) if index not in missing]
    if not positions:
        raise UserError("the training period has no date that can be read", where="dataloader.training")
    yield from positions


def size_in_bytes(dataset: FieldSeries) -> int:
    """Return what a pass over a dataset reads, uncompressed."""
    itemsize = np.dtype(getattr(dataset, "dtype", np.float32)).itemsize
    return int(np.prod([int(length) for length in dataset.shape], dtype=object)) * itemsize


def check_size(dataset: FieldSeries, *, allow_large: bool) -> None:
    """Refuse a pass over a large training period that was not asked for.

    Raises
    ------
    UserError
        Above `SIZE_LIMIT` bytes.
    """
    size = size_in_bytes(dataset)
    if size > SIZE_LIMIT and not allow_large:
        raise UserError(
            f"the climatology needs a pass over the training period, {size / 1e9:.0f} GB",
            where=KEY,
            allowed=f"training periods up to {SIZE_LIMIT / 1e9:.0f} GB, unless asked for",
            mend="diagnostics.scores.allow_large=true, or diagnostics.scores.climatology_file=<a NetCDF file>,"
            " or diagnostics.scores.climatology=none",
        )


def check_coverage(kind: Kind, training_dates: Any, dates: Any, *, window: int = DEFAULT_WINDOW) -> None:
    """Make sure, from the dates alone, that a climatology will have a value for every date that is scored.

    Raises
    ------
    UserError
        Naming the months or days of the year that the training period lacks.
    """
    counts = np.bincount(group_of(kind, training_dates), minlength=GROUPS[kind])
    covered = _window_sum(counts, window if kind == "daily" else 1) > 0
    _require_covered(kind, covered, group_of(kind, dates))


def _require_covered(kind: Kind, covered: NDArray[np.bool_], groups: NDArray[np.intp]) -> None:
    lacking = sorted({int(group) for group in groups[~covered[groups]]})
    if lacking:
        names = [_MONTHS[group] if kind == "monthly" else f"day {group + 1}" for group in lacking]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise UserError(
            f"the climatology has no value for {shown}: the training period has no such date",
            where=KEY,
            mend="a training period that covers the whole year, or diagnostics.scores.climatology=none",
        )


def _means(
    total: NDArray[np.float64], dates_in: NDArray[np.int64], holes: NDArray[np.int32] | None, span: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Divide sums [K, V, G] by counts, over `span` neighbouring groups."""
    mean = np.empty(total.shape, dtype=np.float32)
    for group in range(len(total)):
        near = np.arange(group - span // 2, group + span // 2 + 1) % len(total)
        count: Any = dates_in[near].sum()
        if holes is not None:
            count = count - holes[near].sum(axis=0)  # [V, G]
        summed = total[near].sum(axis=0) if span > 1 else total[group]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean[group] = np.where(count > 0, summed / count, np.nan)
    return mean, _window_sum(dates_in, span) > 0


def _window_sum(counts: NDArray[np.int64], span: int) -> NDArray[np.int64]:
    return np.sum([np.roll(counts, shift) for shift in range(-(span // 2), span // 2 + 1)], axis=0)


def _positions(known: Sequence[str], wanted: Sequence[str]) -> list[int]:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError.collect(
            Problem(
                f"the climatology has no variable {name!r}",
                where=KEY,
                allowed=", ".join(known),
                mend=did_you_mean(name, known),
            )
            for name in unknown
        )
    return [list(known).index(name) for name in wanted]
