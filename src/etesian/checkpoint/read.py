"""Reading of checkpoints, and whether their weights fit a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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
        If the file is not one, or of another format.
    """
    checkpoint: dict[str, Any] = load_file(path, lazily=lazily)
    check_format(path, checkpoint)
    return checkpoint


def check_format(path: Path, checkpoint: Any) -> None:
    """Check that what was read is a checkpoint of a run, of the format that is known here.

    Raises
    ------
    UserError
        If it is not.
    """
    if not _is_of_a_run(checkpoint):
        raise UserError(f"{path} is not a checkpoint of a run", where=str(path), mend="name a .ckpt that a run wrote")
    content = checkpoint["etesian"]
    if content["format"] != FORMAT:
        raise UserError(
            f"{path} is a checkpoint of format {content['format']}, written by etesian {content.get('version', '?')}",
            where=str(path),
            allowed=f"format {FORMAT}",
            mend="go on with the version that wrote it",
        )


def load_file(path: Path, *, lazily: bool = False) -> Any:
    """Read what `torch.save` wrote.

    Raises
    ------
    UserError
        If it can't be read.
    """
    check_input(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=lazily)
    except Exception as cause:
        raise UserError(
            f"{path} can't be read as a checkpoint: {cause}",
            where=str(path),
            mend="name a .ckpt file that a run wrote, or start from an earlier one in the same folder",
        ) from cause


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
