"""Dates: the periods of the splits, the spacing of the data, the timestep."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from anemoi.utils.dates import frequency_to_string, frequency_to_timedelta
from numpy.typing import NDArray

from etesian.errors import Problem, UserError

FORMS = "a year (1979), a month (1979-01), a day (1979-01-01), an instant (1979-01-01T06:00:00) or a share (80%)"
"""Forms of a period's start and end, those of ``open_dataset``."""

_PRECISIONS = (
    (re.compile(r"[0-9]{4}"), "Y"), (re.compile(r"[0-9]{4}-[0-9]{1,2}|[0-9]{6}"), "M"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{8}"), "D"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[T ][0-9]{1,2}:[0-9]{2}:[0-9]{2}"), "s"),
)  # fmt: skip
_SHARE = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)%")


@dataclass(frozen=True)
class Spacing:
    """Distance between a dataset's dates: so many calendar months, or so many seconds."""

    months: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        if self.months:
            return "1 calendar month" if self.months == 1 else f"{self.months} calendar months"
        return frequency_to_string(datetime.timedelta(seconds=self.seconds))

    def after(self, date: np.datetime64, number: int) -> np.datetime64:
        """Return the date so many of these after another one (before it where negative), to the second."""
        date = date.astype("datetime64[s]")
        if not self.months:
            return date + np.timedelta64(number * self.seconds, "s")
        month = date.astype("datetime64[M]")
        return (month + number * self.months).astype("datetime64[s]") + (date - month.astype("datetime64[s]"))


def parse_date(value: str | int, where: str) -> np.datetime64 | None:
    """Return a date in the unit of its precision (year, month, day or second), or None for a share of the dates.

    Raises
    ------
    UserError
        For a form that ``open_dataset`` does not understand, or a day that does not exist.
    """
    text = str(value).strip()
    if _SHARE.fullmatch(text) and float(text[:-1]) <= 100:
        return None
    for form, unit in _PRECISIONS:
        if form.fullmatch(text):
            digits = [part.zfill(2) for part in re.split(r"[-T: ]", text)]
            if len(digits) == 1 and unit != "Y":
                digits = [text[:4], text[4:6], text[6:]][: 2 if unit == "M" else 3]
            iso = "-".join(digits[:3]) + ("T" + ":".join(digits[3:]) if unit == "s" else "")
            try:
                return np.datetime64(iso).astype(f"datetime64[{unit}]")
            except ValueError:
                break
    raise UserError(f"{value!r} is not a date", where=where, allowed=FORMS)


def check_covered(
    dates: NDArray[np.datetime64], period: Mapping[str, str | int | None], keys: Mapping[str, str]
) -> None:
    """Check that a period lies within the dates of the data and is not empty.

    Parameters
    ----------
    dates : array (T,)
        All dates of the data, in order.
    period : mapping
        ``start`` and ``end``; None is not checked, nor is a share. Compared at their own precision: with
        data from 1979-01-01T06, a start of 1979 is covered and 1979-01-01T00:00:00 is not.
    keys : mapping
        The config keys of ``start`` and ``end``.
    """
    bounds = {
        side: None if value is None else parse_date(value, keys[side]) for side, value in period.items()
    }  # fmt: skip
    covers = f"the data covers {dates[0]} to {dates[-1]}"
    problems = []
    for side, bound in bounds.items():
        if bound is None:
            continue
        unit = np.datetime_data(bound.dtype)[0]
        first, last = dates[0].astype(f"datetime64[{unit}]"), dates[-1].astype(f"datetime64[{unit}]")
        if not first <= bound <= last:
            nearest = first if bound < first else last
            problems.append(
                Problem(f"{side} {bound} lies {'before' if bound < first else 'after'} the data: {covers}",
                        where=keys[side], allowed=f"{first} to {last}", mend=f"{keys[side]}={nearest}")
            )  # fmt: skip
    start, end = bounds.get("start"), bounds.get("end")
    if not problems and start is not None and end is not None and _instant(start) >= _instant(end, after=True):
        problems.append(
            Problem(f"start {start} lies after end {end}", where=f"{keys['start']}, {keys['end']}", allowed=covers)
        )
    if problems:
        raise UserError.collect(problems)


def spacing_of(dates: NDArray[np.datetime64], where: str) -> Spacing | None:
    """Return the distance between the dates; None for a single date.

    Raises
    ------
    UserError
        Where the dates are neither evenly spaced nor calendar months in a row, naming the first irregular pair.
    """
    if len(dates) < 2:
        return None
    dates = dates.astype("datetime64[s]")
    months = dates.astype("datetime64[M]")
    if bool(np.all(dates - months == dates[0] - months[0])):  # the same day and time of each month
        steps = np.diff(months).astype(int)
        if steps[0] > 0 and bool(np.all(steps == steps[0])):
            return Spacing(months=int(steps[0]))
    seconds = np.diff(dates).astype(np.int64)
    irregular = np.flatnonzero(seconds != seconds[0])
    if seconds[0] <= 0 or irregular.size:
        pair = int(irregular[0]) if irregular.size else 0
        raise UserError(
            f"the dates are not evenly spaced: {dates[pair]} is followed by {dates[pair + 1]}",
            where=where,
            allowed="dates in order, a fixed time or a calendar month apart",
            mend="declare dates without data as missing (fill_missing_dates or set_missing_dates of open_dataset)",
        )
    return Spacing(seconds=int(seconds[0]))


def timestep_stride(dates: NDArray[np.datetime64], timestep: str | None) -> int:
    """Return how many dates of the data one step of the model is.

    Parameters
    ----------
    dates : array (T,)
        The dates of the data.
    timestep : str or None
        ``task.timestep``, such as ``6h`` or ``1d``; None: one step of the data.

    Raises
    ------
    UserError
        For a timestep that is no multiple of the data's spacing, or for one at all where the spacing is in months.
    """
    key = "task.timestep"
    if timestep is None:
        return 1
    spacing = spacing_of(dates, "dataloader.training")
    if spacing is None:
        raise UserError("the data has one date, so no timestep", where="dataloader.training")
    if spacing.months:
        raise UserError(
            f"a timestep of {timestep!r} does not fit dates that are {spacing} apart",
            where=key, allowed=f"null: one step of the data, {spacing}", mend=f"{key}=null",
        )  # fmt: skip
    seconds = seconds_of(timestep, key)
    if seconds % spacing.seconds:
        raise UserError(
            f"a timestep of {timestep!r} is not a multiple of the data's {spacing}",
            where=key, allowed=f"{spacing} and its multiples", mend=f"{key}=null for one step of the data",
        )  # fmt: skip
    return seconds // spacing.seconds


def seconds_of(text: str, where: str) -> int:
    """Return the seconds of a duration such as ``6h``, ``1d`` or ``30m`` (minutes)."""
    try:
        if not text.isascii():  # other scripts' digits are taken for these
            raise ValueError("it has other than ASCII characters")
        seconds = int(frequency_to_timedelta(text).total_seconds())
    except (ValueError, TypeError, AssertionError, OverflowError) as cause:
        raise UserError(f"{text!r} is not a duration: {cause}", where=where, allowed="such as 6h, 1d, 30m") from cause
    if seconds <= 0:
        raise UserError(f"{text!r} is not a duration above 0", where=where, allowed="such as 6h, 1d, 30m")
    return seconds


def common_period(a: NDArray[np.datetime64], b: NDArray[np.datetime64]) -> tuple[str, str, int] | None:
    """Return the first and last date that two splits share and how many there are, or None."""
    common = np.intersect1d(a, b)
    return (str(common[0]), str(common[-1]), len(common)) if common.size else None


def _instant(date: np.datetime64, after: bool = False) -> np.datetime64:
    """Return the first instant of a date, or the first one after it."""
    return (date + int(after)).astype("datetime64[s]")
