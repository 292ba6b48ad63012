"""The lead time of one step, in dates of the dataset."""

from __future__ import annotations

import re
from datetime import timedelta

from etesian.errors import UserError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def stride(timestep: str | None, frequency: timedelta) -> int:
    """Return how many dates of the dataset lie in one step.

    Parameters
    ----------
    timestep : str or None
        ``task.timestep``, such as ``6h``; None is one date.
    frequency : timedelta
        Spacing of the dataset's dates.

    Raises
    ------
    UserError
        If it is no duration, or no multiple of the spacing.
    """
    if timestep is None:
        return 1
    parts = re.fullmatch(r"(\d+)([smhd])", timestep.strip().lower())
    if parts is None or int(parts[1]) == 0:
        raise UserError(
            f"task.timestep={timestep!r} is no duration",
            where="task.timestep",
            allowed="a whole number with s, m, h or d, such as 6h or 1d; null for one date of the dataset",
        )
    step = timedelta(**{_UNITS[parts[2]]: int(parts[1])})
    if step % frequency:
        raise UserError(
            f"task.timestep={timestep} is no multiple of {_text(frequency)}, the spacing of the dataset's dates",
            where="task.timestep",
            allowed=f"{_text(frequency)} times a whole number, or null for {_text(frequency)}",
        )
    return step // frequency


def _text(duration: timedelta) -> str:
    hours, rest = divmod(int(duration.total_seconds()), 3600)
    if rest:
        return f"{int(duration.total_seconds())}s"
    return f"{hours // 24}d" if hours % 24 == 0 else f"{hours}h"
