"""A folder that is made once, whole or not at all, whoever asks for it and however often."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from etesian.errors import UserError

MARKER = "complete.json"
"""File in a finished folder: the fingerprint, and how many files of how many bytes belong to it."""


def make_once(target: Path, fingerprint: str, make: Callable[[Path], None]) -> None:
    """Make a folder unless it is there and whole.

    It is made beside its place and renamed into it, so nobody ever sees a half-written one; a lock lets one process
    make it while the others wait. A folder that lost a file, or has one cut short, is made again.

    Parameters
    ----------
    target : Path
        The folder.
    fingerprint : str
        Identifies what belongs into it.
    make : callable
        ``make(folder)`` fills a new folder.

    Raises
    ------
    UserError
        Where the folder cannot be written or locked.
    """
    if is_complete(target, fingerprint):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock")):
            if not is_complete(target, fingerprint):  # another process may have made it meanwhile
                _make(target, fingerprint, make)
    except OSError as cause:
        raise UserError(
            f"the dataset cannot be written into the cache folder {target.parent}: {cause}",
            where=str(target),
            mend="set ETESIAN_CACHE to a folder that can be written and locked, with some 50 MB free",
        ) from cause


def is_complete(folder: Path, fingerprint: str) -> bool:
    """Tell whether a folder holds the files, in number and bytes, that were written when it was made."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return marker == {"fingerprint": fingerprint} | _census(folder)


def _make(target: Path, fingerprint: str, make: Callable[[Path], None]) -> None:
    for leftover in target.parent.glob(f".{target.name}.new-*"):  # of a process that was killed: the lock is ours
        shutil.rmtree(leftover)
    workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        folder = workplace / "whole.zarr"
        make(folder)
        (folder / MARKER).write_text(json.dumps({"fingerprint": fingerprint} | _census(folder)))
        if target.exists():
            os.rename(target, workplace / "broken")
        os.rename(folder, target)
    finally:
        shutil.rmtree(workplace)


def _census(folder: Path) -> dict[str, int]:
    """Count the files under a folder and their bytes, the marker left out."""
    files = size = 0
    folders = [str(folder)]
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.name != MARKER:
                files += 1
                size += entry.stat().st_size
    return {"files": files, "bytes": size}


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the kernel gives it back if the process dies."""
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
