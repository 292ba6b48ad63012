"""When checkpoints are written, how, and what they hold beyond Lightning's own state."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from etesian import __version__
from etesian.checkpoint.check import EARLIER
from etesian.checkpoint.content import FORMAT
from etesian.checkpoint.inference import InferenceCheckpoint
from etesian.errors import UserError
from etesian.files import link, save_torch
from etesian.schema.diagnostics import CheckpointSettings, SaveFrequency

LAST, BEST = "last.ckpt", "best.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint to a temporary file that takes its name once it is whole.

    Every checkpoint but the best becomes ``last.ckpt`` too, so that a run always goes on from the newest, and is
    written for inference beside it.

    Parameters
    ----------
    inference : InferenceCheckpoint, optional
        What writes it for inference; without, nothing does.
    """

    def __init__(self, inference: InferenceCheckpoint | None = None) -> None:
        super().__init__()
        self.inference = inference

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint atomically."""
        if storage_options is not None:
            raise TypeError("a checkpoint takes no storage options")
        target = Path(path)
        save_torch(target, checkpoint)
        if target.name == BEST:
            return
        if target.name != LAST:
            link(target, target.with_name(LAST))
        if self.inference is not None:
            self.inference.write(checkpoint, target.with_name(LAST))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint; one that is gone already is no fault."""
        Path(path).unlink(missing_ok=True)


class RunState(Callback):
    """Keeps in each checkpoint what an exact continuation needs: random states, kernels and the way the data go on.

    Parameters
    ----------
    content : dict
        What :func:`etesian.checkpoint.content.describe_experiment` returns, stored under the key ``etesian``.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the experiment's description and the random states."""
        checkpoint["etesian"] = {"format": FORMAT, "version": __version__, **self.content, "random": _random_states()}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the random states."""
        _restore_random_states(checkpoint["etesian"]["random"])


def position_in_data(checkpoint: dict[str, Any]) -> tuple[int, int]:
    """Return the epoch and the batch at which the training data go on.

    Parameters
    ----------
    checkpoint : dict
        A checkpoint of Lightning, with its loops' progress.

    Raises
    ------
    UserError
        If it does not tell.
    """
    try:
        fit = checkpoint["loops"]["fit_loop"]
        epochs, batches = fit["epoch_progress"]["current"], fit["epoch_loop.batch_progress"]
        if batches["is_last_batch"]:  # saved after the last batch of an epoch, before or at the epoch's end
            return max(epochs["processed"], epochs["started"]), 0
        return epochs["processed"], batches["current"]["ready"]
    except (KeyError, TypeError) as cause:
        what = f"the checkpoint is damaged: it does not tell where its data go on ({type(cause).__name__}: {cause})"
        raise UserError(what, where="loops", mend=EARLIER) from cause


def check_not_imported(path: Path, checkpoint: dict[str, Any]) -> None:
    """Check that a checkpoint has the state of an optimiser to go on from: an imported one has weights alone.

    Raises
    ------
    UserError
        If it has not.
    """
    if origin := checkpoint["etesian"]["run"].get("imported"):
        raise UserError(
            f"{path} was imported from {origin}: it holds weights, but no state of an optimiser to go on from",
            where="training.load_weights_only",
            allowed="true",
            mend="training.load_weights_only=true",
        )


def checkpoint_callbacks(settings: CheckpointSettings, folder: Path) -> list[Callback]:
    """Make the callbacks that write ``best.ckpt``, ``last.ckpt`` and the periodic checkpoints of the config."""
    common: dict[str, Any] = {"dirpath": folder, "auto_insert_metric_name": False, "enable_version_counter": False}
    callbacks: list[Callback] = [
        ModelCheckpoint(**common, filename="best", monitor="val_loss", mode="min", save_top_k=1),
        ModelCheckpoint(**common, filename="last", every_n_epochs=1, save_on_train_epoch_end=True),
    ]
    triggers: list[tuple[str, SaveFrequency, str]] = [
        ("every_n_train_steps", settings.every_n_train_steps, "by_step"),
        ("every_n_epochs", settings.every_n_epochs, "by_epoch"),
        ("train_time_interval", settings.every_n_minutes, "by_time"),
    ]
    for option, frequency, prefix in triggers:
        every = frequency.save_frequency
        if every is None:
            continue
        trigger: dict[str, Any] = {option: timedelta(minutes=every) if option == "train_time_interval" else every}
        if option == "every_n_epochs":
            trigger["save_on_train_epoch_end"] = True
        if frequency.num_models_saved == 0:
            callbacks.append(ModelCheckpoint(**common, **trigger, filename="last"))
        else:
            name = f"{prefix}-epoch_{{epoch:03d}}-step_{{step:06d}}"
            keep = frequency.num_models_saved
            callbacks.append(
                ModelCheckpoint(**common, **trigger, filename=name, monitor="step", mode="max", save_top_k=keep)
            )
    return callbacks


def _random_states() -> dict[str, Any]:
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - the global state is what is kept
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _restore_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
