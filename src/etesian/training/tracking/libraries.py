"""Whether the libraries of the trackers that a config asks for are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import NamedTuple

from etesian.errors import Problem, UserError
from etesian.schema.diagnostics import LogSettings


class Library(NamedTuple):
    """A tracker's name, the module that it is imported as, and the extra that installs it."""

    title: str
    module: str
    extra: str


TENSORBOARD = Library("TensorBoard", "tensorboard", "tensorboard")
MLFLOW = Library("MLflow", "mlflow", "mlflow")
WANDB = Library("Weights & Biases", "wandb", "wandb")


def check_libraries(log: LogSettings) -> None:
    """Check that what the config logs to is installed; MLflow needs nothing while ``offline``.

    Raises
    ------
    UserError
        Naming the extra of each that is not.
    """
    asked = [
        (TENSORBOARD, "diagnostics.log.tensorboard.enabled", log.tensorboard.enabled),
        (MLFLOW, "diagnostics.log.mlflow.enabled", log.mlflow.enabled and not log.mlflow.offline),
        (WANDB, "diagnostics.log.wandb.enabled", log.wandb.enabled),
    ]
    check_installed((library, key) for library, key, enabled in asked if enabled)


def check_installed(asked: Iterable[tuple[Library, str]]) -> None:
    """Check that libraries are installed, each asked for by a key or an option.

    Raises
    ------
    UserError
        Naming the extra of each that is not.
    """
    problems = [
        Problem(
            f"{library.title} is not installed",
            where,
            mend=f"pip install 'etesian[{library.extra}]'" + (f", or {where}=false" if "." in where else ""),
        )
        for library, where in asked
        if not _is_installed(library.module)
    ]
    if problems:
        raise UserError.collect(problems)


def _is_installed(module: str) -> bool:
    """Tell whether a module can be imported; a folder of that name without code, such as logs, is none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None
