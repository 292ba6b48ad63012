"""Files appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etesian.files import atomic_file, link, write_json


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_name_is_taken_at_the_end(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "new" / "a.txt", "w") as file:
        file.write("whole")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    assert names(tmp_path / "new") == ["a.txt"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "a.txt", "w") as file:
        file.write(f"half {1 / 0}")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_others_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_json(tmp_path / "a.json", {"a": 1})
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def test_a_second_name_outlives_the_first(tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "first").unlink(missing_ok=True)
        (tmp_path / "first").write_text(text)
        link(tmp_path / "first", tmp_path / "last")
        assert (tmp_path / "last").read_text() == text
    (tmp_path / "first").unlink()
    assert names(tmp_path) == ["last"]
