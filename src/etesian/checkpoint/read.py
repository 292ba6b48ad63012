"""Reading of checkpoints, and whether their weights fit a model."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from etesian.checkpoint.check import EARLIER, check_content
from etesian.checkpoint.content import FORMAT
from etesian.checkpoint.paths import check_input
from etesian.errors import Problem, UserError


def load_checkpoint(path: Path, *, lazily: bool = False) -> dict[str, Any]:
    """Read a checkpoint of a run.

    Parameters
    ----------
    path : Path
        The file.
    lazily : bool
        Leave the tensors on disk until they are used.

    Raises
    ------
    UserError
        If the file is not one, of another format, or damaged.
    """
    checkpoint: dict[str, Any] = load_file(path, lazily=lazily)
    check_format(path, checkpoint)
    return checkpoint


def check_format(path: Path, checkpoint: Any) -> None:
    """Check that what was read is a checkpoint of a run, of the format that is known here.

    Raises
    ------
    UserError
        If it is not, or if what it tells of its experiment is not whole.
    """
    if not _is_of_a_run(checkpoint):
        raise UserError(f"{path} is not a checkpoint of a run", where=str(path), mend="name a .ckpt that a run wrote")
    content = checkpoint["etesian"]
    if content["format"] != FORMAT:
        raise UserError(
            f"{path} is a checkpoint of format {content['format']!r}, written by etesian {content.get('version', '?')}",
            where=str(path),
            allowed=f"format {FORMAT}",
            mend="go on with the version that wrote it",
        )
    check_content(path, content, checkpoint, exported=False)


def check_about(path: Path, about: dict[str, Any]) -> None:
    """Check what an exported forecaster tells of itself.

    Raises
    ------
    UserError
        If it is not whole.
    """
    exported = about.get("exported")
    if not isinstance(exported, dict) or not {"step", "checkpoint"} <= set(exported) or "format" not in about:
        raise UserError(f"{path} does not tell what it was exported from", where=str(path), mend="export it again")
    check_content(path, about, exported, exported=True)


def load_file(path: Path, *, lazily: bool = False) -> Any:
    """Read what `torch.save` wrote, and compare it with its checksums: all of it, or lazily all but the tensors.

    Raises
    ------
    UserError
        If it can't be read, or is not what was written.
    """
    check_input(path)
    _check_sums(path, tensors=not lazily)
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=lazily)
    except Exception as cause:
        raise UserError(
            f"{path} can't be read as a checkpoint: {cause}",
            where=str(path),
            mend="name a .ckpt file that a run wrote, or start from an earlier one in the same folder",
        ) from cause


def _check_sums(path: Path, *, tensors: bool) -> None:
    """Compare the parts of a file with the checksums that were written with them; torch does not.

    Raises
    ------
    UserError
        If one differs.
    """
    if not zipfile.is_zipfile(path):
        return  # torch tells what it is
    try:
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                if tensors or "/data/" not in part.filename:
                    with archive.open(part) as content:
                        while content.read(1 << 24):
                            pass
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as cause:
        what = f"{path} is damaged: it is not what was written ({cause})"
        raise UserError(what, where=str(path), mend=EARLIER) from cause


def _is_of_a_run(checkpoint: Any) -> bool:
    parts = {"etesian": dict, "state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list,
             "global_step": int}  # fmt: skip
    if not isinstance(checkpoint, dict) or not all(
        isinstance(checkpoint.get(key), kind) for key, kind in parts.items()
    ):
        return False
    return {"format", "random"} <= set(checkpoint["etesian"])


def check_weights(path: Path, weights: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    """Compare the names and shapes of a checkpoint's weights with those of a model.

    Raises
    ------
    UserError
        Naming the weights that are missing, left over or of another shape.
    """
    own = module.state_dict()
    faults = [f"{name} is missing" for name in own if name not in weights]
    faults += [f"{name} is not in this model" for name in weights if name not in own]
    faults += [
        f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise UserError.collect(
            [
                Problem(
                    f"the weights of {path} don't fit this model: {shown}",
                    where="model",
                    mend="use the data, graph and model sections of the run that wrote the checkpoint"
                    " (config.yaml in its folder)",
                )
            ]
        )


def check_finite(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that weights are numbers.

    Raises
    ------
    UserError
        Naming those that hold NaN or infinity.
    """
    lost = lost_weights(weights)
    if lost:
        what = f"weights of {path} hold NaN or infinity: {shown_weights(lost)}"
        raise UserError(what, where=str(path), mend=EARLIER)


def lost_weights(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the weights that hold NaN or infinity."""
    return [name for name, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]


def shown_weights(names: Sequence[str]) -> str:
    """Return a few of the names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
