"""Start and spacing of the dates of a store that is made here, as a command line gives them."""

from __future__ import annotations

import numpy as np

from etesian.errors import UserError


def step_hours(frequency: str) -> int:
    """Return the spacing of the dates in hours.

    Raises
    ------
    UserError
        It is not a whole number of hours.
    """
    from anemoi.utils.dates import frequency_to_timedelta

    try:
        hours = frequency_to_timedelta(frequency).total_seconds() / 3600.0
    except ValueError:
        hours = 0.0
    if hours < 1.0 or hours != int(hours):
        raise UserError(
            f"--frequency {frequency} is not a whole number of hours",
            where="--frequency",
            allowed="1h, 3h, 6h, 12h, 1d, ...",
        )
    return int(hours)


def first_date(start: str) -> np.datetime64:
    """Return the first date, to the second.

    Raises
    ------
    UserError
        It is not a date.
    """
    try:
        date = np.datetime64(start).astype("datetime64[s]")
    except ValueError:
        date = np.datetime64("NaT")
    if np.isnat(date):
        raise UserError(f"--start {start} is not a date", where="--start", allowed="2000-01-01 or 2000-01-01T06")
    return date


def regular_dates(start: np.datetime64, hours: int, number: int) -> np.ndarray:
    """Return so many dates (T,), datetime64[s], so many hours apart."""
    return start + np.arange(number) * np.timedelta64(hours * 3600, "s")
