"""Paths of checkpoints, looked at before anything that takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from etesian.errors import UserError, did_you_mean, shell_word
from etesian.inference.layout import is_safe
from etesian.outputs import check_name, check_writable


def check_input(path: Path, *, folder: bool = False) -> None:
    """Check that a checkpoint is there: a file, or with `folder` also a folder without pickle.

    Raises
    ------
    UserError
        If it is not a file; naming the checkpoint of a run where its folder was given, or the nearest spelling.
    """
    if path.is_file() or (folder and is_safe(path)):
        return
    general = "name a .ckpt file that a run wrote"
    if path.is_dir():
        places = [path / name for name in ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "best.ckpt", "last.ckpt")]
        found = next((str(place) for place in places if place.is_file()), None)
        raise UserError(f"{path} is a folder", where=str(path), mend=found or general)
    near = did_you_mean(path.name, sorted(file.name for file in path.parent.glob("*.ckpt")))
    raise UserError(f"{path} does not exist", where=str(path), mend=near or general)


def check_output(output: Path, source: Path, *, force: bool) -> None:
    """Check where an export is written.

    Raises
    ------
    UserError
        If the folder is missing or not to be written to, if the name is too long, or if what is there is not to be
        replaced, is no regular file, or is the checkpoint itself.
    """
    where = "--output"
    check_name(output, where)
    if output.parent.is_file():
        raise UserError(f"{output.parent} is no folder", where=where, mend="another name")
    if not output.parent.is_dir():
        what = f"the folder {output.parent} does not exist"
        raise UserError(what, where=where, mend=f"mkdir -p {shell_word(str(output.parent))}")
    if output.is_dir():
        raise UserError(
            f"{output} is a folder", where=where, mend=f"--output {shell_word(str(output / 'inference.ckpt'))}"
        )
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"{output} is the checkpoint itself", where=where, mend="another name")
    if output.exists() and not force:
        raise UserError(f"{output} is there already", where=where, mend="another name, or --force to replace it")
    check_writable(output, where)


def find_checkpoint(given: Path, runs: Path) -> Path:
    """Return the checkpoint that a path or a name means: that itself, or of a run its ``best.ckpt``.

    Parameters
    ----------
    given : Path
        A checkpoint, a folder without pickle, a run's folder, or a run's name.
    runs : Path
        Folder of the runs, where names are looked for.

    Raises
    ------
    UserError
        If there is no such thing, or the run has no ``best.ckpt``.
    """
    if given.is_file() or is_safe(given):
        return given
    folder = given if given.is_dir() else runs / given
    if folder.is_dir() and (folder / "checkpoints").is_dir():
        best, last = folder / "checkpoints/best.ckpt", folder / "checkpoints/last.ckpt"
        if best.is_file():
            return best
        mend = f"name another checkpoint: {last}" if last.is_file() else None
        raise UserError(f"the run {folder} has no checkpoints/best.ckpt", where=str(folder), mend=mend)
    if given.is_dir() or given.suffix:
        check_input(given, folder=True)
    names = sorted(path.parent.name for path in runs.glob("*/checkpoints"))
    allowed = "a run's folder or name, a .ckpt, or a folder such as checkpoints/inference-last"
    what = f"{given} is no checkpoint, and {runs} holds no run of that name"
    raise UserError(what, where=str(given), allowed=allowed, mend=did_you_mean(str(given), names))
