"""Start and spacing of the dates of a store that is made here, as a command line gives them."""

from __future__ import annotations

import re

import numpy as np

from etesian.errors import Problem, UserError

MOST_DATES = 1_000_000
"""Dates of a store: hourly ones of a century."""

LONGEST_STEP = 366 * 24
"""Hours between two dates, at most."""

_DATE = re.compile(r"(?!0000)[0-9]{4}(-[0-9]{2}(-[0-9]{2}([T ][0-9]{2}(:[0-9]{2}(:[0-9]{2})?)?)?)?)?")
_END = np.datetime64("10000-01-01", "s")


def step_hours(frequency: str) -> int:
    """Return the spacing of the dates in hours.

    Raises
    ------
    UserError
        It is not a whole number of hours, or more than a year.
    """
    from anemoi.utils.dates import frequency_to_timedelta

    try:
        hours = frequency_to_timedelta(frequency).total_seconds() / 3600.0 if frequency.isascii() else 0.0
    except OverflowError:
        hours = LONGEST_STEP + 1.0
    except (ValueError, TypeError, AssertionError):
        hours = 0.0
    if hours > LONGEST_STEP:
        raise UserError(f"--frequency {frequency} is more than a year", where="--frequency",
                        allowed="1h, 3h, 6h, 12h, 1d, ... 366d")  # fmt: skip
    if hours < 1.0 or hours != int(hours):
        raise UserError(
            f"--frequency {frequency} is not a whole number of hours",
            where="--frequency",
            allowed="1h, 3h, 6h, 12h, 1d, ...",
        )
    return int(hours)


def first_date(start: str, option: str = "--start") -> np.datetime64:
    """Return the first date, to the second; `option` is what gives it.

    Raises
    ------
    UserError
        It is not a date that is the same whenever it is read.
    """
    try:
        date = np.datetime64(start).astype("datetime64[s]") if _DATE.fullmatch(start) else np.datetime64("NaT")
    except ValueError:
        date = np.datetime64("NaT")
    if np.isnat(date):
        raise UserError(f"{option} {start} is not a date", where=option, allowed="2000-01-01 or 2000-01-01T06")
    return date


def regular_dates(start: np.datetime64, hours: int, number: int) -> np.ndarray:
    """Return so many dates (T,), datetime64[s], so many hours apart."""
    return start + np.arange(number) * np.timedelta64(hours * 3600, "s")


def beyond_calendar(start: np.datetime64, hours: int, number: int, option: str) -> list[Problem]:
    """Return the problem of dates too many for a store or beyond the year 9999, found without making them.

    Parameters
    ----------
    start : numpy.datetime64
        First date.
    hours : int
        Spacing.
    number : int
        Number of dates.
    option : str
        The option that gives their number.
    """
    if number > MOST_DATES:
        what = f"{option} means more than {MOST_DATES:,} dates"
        return [Problem(what, option, f"up to {MOST_DATES:,} dates, the last one not after the year 9999")]
    last = int(start.astype("datetime64[s]").astype(np.int64)) + (number - 1) * hours * 3600
    if last < int(_END.astype(np.int64)):
        return []
    what = f"{option}: {number:,} dates {hours} hours apart from {start} end after the year 9999"
    return [Problem(what, option, "dates up to the year 9999", "fewer dates, or a shorter --frequency")]
