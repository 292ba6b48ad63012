"""The config and the layer kernels of a run, to every logger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from etesian.kernels.record import KernelRecord, config_key
from etesian.training.tracking.content import COLUMNS, kernel_rows, markdown
from etesian.training.tracking.wandb_logger import WandbRun


@rank_zero_only
def log_experiment(loggers: Iterable[Logger], config: dict[str, Any], records: Sequence[KernelRecord]) -> None:
    """Hand the config and the kernels to each logger as hyperparameters; to TensorBoard and W&B as a table too.

    Parameters
    ----------
    loggers : iterable of Logger
        Loggers of Lightning.
    config : dict
        The resolved config.
    records : sequence of KernelRecord
        The kernels.
    """
    for logger in loggers:
        logger.log_hyperparams({"config": config, "kernels": kernels_by_key(records)})
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text("layer kernels", markdown(records))
        elif isinstance(logger, WandbRun):
            logger.log_kernels(COLUMNS, kernel_rows(records))


def kernels_by_key(records: Sequence[KernelRecord]) -> dict[str, dict[str, Any]]:
    """Return target, arguments, family, library, version and origin of each slot, by its config key."""
    facts = ("target", "arguments", "family", "library", "version", "origin")
    return {
        config_key(record.component, record.slot): {name: getattr(record, name) for name in facts} for record in records
    }
