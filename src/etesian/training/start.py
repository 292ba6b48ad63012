"""Where a run starts from: its own last checkpoint, that of a run it is forked or transferred from, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from etesian.checkpoint.content import kernels_of
from etesian.checkpoint.mapping import check_mapping, library_changes
from etesian.checkpoint.read import check_finite, check_weights, load_checkpoint
from etesian.training.checkpoints import check_not_imported, position_in_data
from etesian.training.choices import check_choices
from etesian.training.datamodule import ForecastDataModule
from etesian.training.experiment import Experiment
from etesian.training.metrics_csv import MetricsCSV
from etesian.training.module import ForecastModule
from etesian.training.run_folder import RunFolder, find_checkpoint, resolved
from etesian.training.tracking.tensorboard import TensorBoardFiles
from etesian.training.transfer import transfer_into


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from, and what is to be said of its kernels."""

    path: Path
    checkpoint: dict[str, Any]
    changes: list[str]


def starting_checkpoint(experiment: Experiment, run: RunFolder) -> Start | None:
    """Return the checkpoint to start from: this run's last one before the one of a run it is forked from.

    Its kernels are compared with those of the experiment.
    """
    config, kernels = experiment.config, experiment.kernels
    if (path := run.last_checkpoint) is not None:
        run.check_same_experiment(resolved(config))
    elif config.training.fork_run_id is not None:
        path = find_checkpoint(run.root, config.training.fork_run_id)
    elif config.training.transfer_from is not None:
        path = find_checkpoint(run.root, config.training.transfer_from, "training.transfer_from")
    else:
        return None
    checkpoint = load_checkpoint(path)
    stored, allowed = kernels_of(checkpoint["etesian"]), config.training.allow_other_kernels
    changed = check_mapping(path, stored, kernels, config.model, experiment.device, allowed=allowed)
    said = [f"other kernels: {parity}" for parity in changed]
    return Start(
        path, checkpoint, [*said, *(f"since the checkpoint: {c}" for c in library_changes(stored, kernels.records))]
    )


def prepare_start(
    found: Start,
    experiment: Experiment,
    run: RunFolder,
    module: ForecastModule,
    datamodule: ForecastDataModule,
    trainer: pl.Trainer,
) -> tuple[Path | None, str]:
    """Check a checkpoint against the model and set where the data go on.

    Returns what Lightning restores, and where the run starts, in words.
    """
    start, checkpoint, config = found.path, found.checkpoint, experiment.config
    resumes, step = start.parent == run.checkpoints, checkpoint["global_step"]
    if config.training.transfer_from is not None and not resumes:
        return None, transfer_into(module, experiment, run, start, checkpoint, report=trainer.is_global_zero)
    check_weights(start, checkpoint["state_dict"], module)
    check_finite(start, checkpoint["state_dict"])
    if config.training.load_weights_only and not resumes:
        module.load_state_dict(checkpoint["state_dict"])
        return None, f"new, with the weights of {start}"
    check_not_imported(start, checkpoint)
    check_choices(start, checkpoint, config.training)
    datamodule.resume_at = position_in_data(checkpoint)
    if not resumes:
        return start, f"new, goes on from {start} at step {step}"
    for logger in trainer.loggers:
        if isinstance(logger, MetricsCSV | TensorBoardFiles):
            logger.resume_from(step)
    done = step >= module.run_steps
    return start, f"resumed from {start.name}, " + (f"all {step} steps done" if done else f"goes on at step {step}")
