"""Dates of the dataset in one step of the forecast."""

from __future__ import annotations

from datetime import timedelta

import pytest

from etesian.data.timestep import stride
from etesian.errors import UserError


@pytest.mark.parametrize(
    ("timestep", "hours", "dates"),
    [(None, 6, 1), ("6h", 6, 1), ("12h", 6, 2), ("1d", 6, 4), ("360m", 6, 1), ("3600s", 1, 1), ("24H", 24, 1)],
)
def test_multiples(timestep: str | None, hours: int, dates: int) -> None:
    assert stride(timestep, timedelta(hours=hours)) == dates


@pytest.mark.parametrize(("timestep", "hours", "spacing"), [("9h", 6, "6h"), ("3h", 6, "6h"), ("36h", 24, "1d")])
def test_no_multiple(timestep: str, hours: int, spacing: str) -> None:
    with pytest.raises(UserError) as caught:
        stride(timestep, timedelta(hours=hours))
    (problem,) = caught.value.problems
    assert problem.where == "task.timestep"
    assert f"no multiple of {spacing}" in problem.what


@pytest.mark.parametrize("timestep", ["6", "six hours", "0h", "-6h", "1M2d", ""])
def test_no_duration(timestep: str) -> None:
    with pytest.raises(UserError, match="is no duration"):
        stride(timestep, timedelta(hours=6))
