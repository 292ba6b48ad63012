"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from etesian.outputs import check_regular


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Name a temporary file beside `path` that takes its name once the body is through.

    Parameters
    ----------
    path : Path
        The file to make or replace; its folder is made if missing.

    Raises
    ------
    UserError
        If `path` is there and no regular file.
    Exception
        Whatever the body raises; `path` is untouched then.
    """
    check_regular(path, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open such a temporary file for writing, ``"wb"`` or ``"w"``; see :func:`atomic_path`."""
    with atomic_path(path) as temporary, open(temporary, mode) as file:
        yield file


@contextmanager
def files_together(folder: Path, replaced: Sequence[str] = ()) -> Iterator[Path]:
    """Name a temporary folder whose files go into `folder` once the body is through.

    Parameters
    ----------
    folder : Path
        Where the files are to lie; it is made if missing.
    replaced : sequence of str
        Patterns of the files there that go when the new ones come.

    Raises
    ------
    Exception
        Whatever the body raises; `folder` is as it was then.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name[:40]}.", dir=folder.parent) as name:
        temporary = Path(name)
        yield temporary
        folder.mkdir(exist_ok=True)
        for pattern in replaced:
            for file in folder.glob(pattern):
                file.unlink()
        for file in sorted(temporary.iterdir()):
            os.replace(file, folder / file.name)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path, "w") as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def save_torch(path: Path, content: Any) -> None:
    """Write a torch file atomically."""
    with atomic_file(path) as file:
        torch.save(content, file)


def link(existing: Path, name: Path) -> None:
    """Give an existing file a second name atomically: a hard link, or a copy where the file system has none."""
    temporary = name.with_name(f".{name.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(existing, temporary)
    except OSError:
        with open(existing, "rb") as source, atomic_file(name) as target:
            _copy(source.read, target.write)
        return
    os.replace(temporary, name)


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], Any]) -> None:
    while block := read(1 << 24):
        write(block)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
