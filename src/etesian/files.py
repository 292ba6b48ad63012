"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from etesian.errors import UserError

LONGEST_NAME = 255
"""Bytes of a file's name."""


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


def check_regular(path: Path, where: str) -> None:
    """Check that nothing but a regular file would be replaced: no folder, device, pipe or socket.

    Raises
    ------
    UserError
        If it would.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder", where=where, mend="the name of a file in it")
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no regular file and is not replaced", where=where, mend="another name")


def check_name(path: Path, where: str) -> None:
    """Check that a file system takes the names in a path.

    Raises
    ------
    UserError
        If one is too long.
    """
    long = [part for part in path.parts if len(os.fsencode(part)) > LONGEST_NAME]
    if long:
        what = f"the name {long[0][:20]}... is {len(os.fsencode(long[0]))} bytes long"
        raise UserError(what, where=where, allowed=f"at most {LONGEST_NAME} bytes", mend="a shorter name")


def check_writable(path: Path, where: str) -> None:
    """Check, before the work is done, that a file can be written; missing folders can be made.

    Parameters
    ----------
    path : Path
        The file.
    where : str
        The option that names it.

    Raises
    ------
    UserError
        If something there is no regular file, the name is too long, or the folder is none or is not to be written to.
    """
    check_name(path, where)
    folder = next((parent for parent in path.parents if parent.exists()), Path())
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder", where=where, mend="another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"the folder {folder} is not to be written to", where=where, mend="another folder")
    check_regular(path, where)


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
