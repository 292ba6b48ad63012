"""Reading of checkpoints, and whether their weights fit a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from etesian.errors import Problem, UserError

FORMAT = 1
"""Version of the checkpoint's layout under the key ``etesian``."""


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run.

    Raises
    ------
    UserError
        If the file is not one.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as cause:
        raise UserError(
            f"{path} can't be read as a checkpoint: {cause}",
            where=str(path),
            mend="name a .ckpt file that a run wrote, or start from an earlier one in the same folder",
        ) from cause
    if not _is_of_a_run(checkpoint):
        raise UserError(f"{path} is not a checkpoint of a run", where=str(path), mend="name a .ckpt that a run wrote")
    return checkpoint


def _is_of_a_run(checkpoint: Any) -> bool:
    parts = {"etesian": dict, "state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list,
             "global_step": int}  # fmt: skip
    if not isinstance(checkpoint, dict) or not all(
        isinstance(checkpoint.get(key), kind) for key, kind in parts.items()
    ):
        return False
    return checkpoint["etesian"].get("format") == FORMAT and "random" in checkpoint["etesian"]


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
