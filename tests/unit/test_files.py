"""Files appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from etesian.errors import UserError
from etesian.files import atomic_file, files_together, link, write_json
from etesian.outputs import check_writable


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


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, message in (("pipe", "pipe is no regular file and is not replaced"), ("folder", "folder is a folder")):
        with pytest.raises(UserError, match=message):
            write_json(tmp_path / name, {})
        with pytest.raises(UserError, match=message) as caught:
            check_writable(tmp_path / name, "--output")
        assert caught.value.problems[0].where == "--output"
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["folder", "pipe"]


def test_a_name_of_any_length_that_a_file_may_have(tmp_path: Path) -> None:
    for name in ("a" * 250 + ".json", "\u00e4" * 125 + ".json"):
        check_writable(tmp_path / name, "-o")
        write_json(tmp_path / name, {})
    with pytest.raises(UserError, match="is 256 bytes long"):
        check_writable(tmp_path / ("a" * 256), "-o")


def test_whether_a_file_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "new" / "folders" / "a.json", "--write")
    assert not names(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is no folder"):
        check_writable(tmp_path / "file" / "a.json", "--write")
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    with pytest.raises(UserError, match="is not to be written to"):
        check_writable(tmp_path / "a.json", "--write")


def test_files_come_together_and_take_the_place_of_others(tmp_path: Path) -> None:
    output = tmp_path / "new" / "output"
    for text in ("one", "two"):
        with files_together(output, ["*.csv"]) as folder:
            (folder / f"{text}.csv").write_text(text)
            assert not list(output.glob(f"{text}.csv"))
    (output / "mine.txt").touch()
    assert names(output) == ["mine.txt", "two.csv"]
    with pytest.raises(ZeroDivisionError), files_together(output, ["*.csv"]) as folder:
        (folder / "three.csv").write_text(f"half {1 / 0}")
    assert names(output) == ["mine.txt", "two.csv"]
    assert names(tmp_path / "new") == ["output"]
