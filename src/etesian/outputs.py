"""Whether a file can be written, looked at before the work is done and before anything that takes long to import."""

from __future__ import annotations

import os
from pathlib import Path

from etesian.errors import UserError

LONGEST_NAME = 255
"""Bytes of a file's name."""


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
