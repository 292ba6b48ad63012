"""The number of a process, as its launcher tells it."""

from __future__ import annotations

import pytest

from etesian.commands.common import local_rank
from etesian.errors import UserError


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "3"}, 3),
        ({"SLURM_LOCALID": "2"}, 2),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
    ],
)
def test_it_is_what_the_launcher_says(environment: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_rank() == rank


@pytest.mark.parametrize("rank", ["first", "\N{ARABIC-INDIC DIGIT THREE}"])
def test_what_is_no_number_is_refused(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(UserError, match=f"'{rank}'"):
        local_rank()
