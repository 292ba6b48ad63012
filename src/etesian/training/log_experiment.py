"""The config and the layer kernels of a run, to every logger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from etesian.kernels.record import KernelRecord, config_key


@rank_zero_only
def log_experiment(loggers: Iterable[Logger], config: dict[str, Any], records: Sequence[KernelRecord]) -> None:
    """Hand the config and the kernels to each logger as hyperparameters; to TensorBoard as a table of text too.

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


def kernels_by_key(records: Sequence[KernelRecord]) -> dict[str, dict[str, Any]]:
    """Return target, arguments, family, library, version and origin of each slot, by its config key."""
    facts = ("target", "arguments", "family", "library", "version", "origin")
    return {
        config_key(record.component, record.slot): {name: getattr(record, name) for name in facts} for record in records
    }


def markdown(records: Sequence[KernelRecord]) -> str:
    """Lay the kernels out as a table in Markdown."""
    rows = ["| slot | kernel | family | library | origin | note |", "|---|---|---|---|---|---|"]
    for record in records:
        arguments = ", ".join(f"{name}={value!r}" for name, value in record.arguments.items())
        cells = (
            config_key(record.component, record.slot), f"{record.target}({arguments})", record.family,
            f"{record.library} {record.version}".strip(), record.origin, record.note,
        )  # fmt: skip
        rows.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(rows)
