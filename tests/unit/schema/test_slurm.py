"""Section ``system.slurm``: what may stand there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from etesian.schema.slurm import SlurmSettings, seconds_of


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("00:00:01", 1), ("12:00:00", 43200), ("1-02:03:04", 93784), ("12h", 0), ("1:60:00", 0), ("10", 0), ("", 0)],
)
def test_times(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("time", "12h", "system.slurm.time='12h' is no time"),
        ("time", "00:00:00", "is no time"),
        ("partition", "two words", "is no name that sbatch takes"),
        ("options", {"time": 3}, "--time is set by system.slurm.time"),
        ("options", {"--exclusive": "user"}, "no option of sbatch by its long name"),
        ("options", {"comment": "two words"}, "holds blanks"),
        ("environment", {"1A": "x"}, "no name of an environment variable"),
        ("environment", {"A": "x\ny"}, "has a line break"),
        ("setup", ["a\nb"], "has a line break"),
        ("signal_seconds", 0, "greater than or equal to 1"),
        ("partitoin", "gpu", "Extra inputs"),
    ],
)
def test_wrong_values(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SlurmSettings(**{"time": "01:00:00", key: value})
