"""The folder of a run: its name, what it holds, and whether a run may go on in it."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from etesian.errors import Problem, UserError
from etesian.files import write_text
from etesian.schema.config import Config

EXPERIMENT_SECTIONS = ("data", "graph", "model", "task")
"""Sections that must not change when a run is resumed."""

KERNEL_KEYS = ("layer_kernels", "compile")
"""Keys of the model and its components that may be written otherwise; the kernels are compared by their records."""


def new_run_id() -> str:
    """Return a name that sorts by time and is new."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class RunFolder:
    """``<system.output.root>/<run_id>``."""

    root: Path
    run_id: str

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.root / self.run_id

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Folder of the pictures."""
        return self.path / "plots"

    @property
    def last_checkpoint(self) -> Path | None:
        """The checkpoint that a resumed run goes on from, if there is one."""
        last = self.checkpoints / "last.ckpt"
        if last.is_file():
            return last
        others = sorted(file.name for file in self.checkpoints.glob("*.ckpt") if not file.name.startswith("inference"))
        if others or last.exists():
            raise UserError(
                f"the run folder {self.path} has no file last.ckpt to go on from",
                where=str(last),
                allowed=f"there: {', '.join(others)}" if others else None,
                mend="copy one of them to last.ckpt, or start another run: training.run_id=NAME",
            )
        return None

    def check_writable(self) -> None:
        """Check, without making anything, that the folder can be made.

        Raises
        ------
        UserError
            If the nearest folder that is there can't be written to.
        """
        nearest = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not nearest.is_dir():
            raise self._not_writable(f"{nearest} is a file")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise self._not_writable(f"no permission to write to {nearest}")

    def create(self) -> None:
        """Make the folder.

        Raises
        ------
        UserError
            If that fails.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise self._not_writable(cause.strerror or str(cause)) from cause

    def _not_writable(self, reason: str) -> UserError:
        return UserError(
            f"the run folder {self.path} can't be made: {reason}",
            where="system.output.root",
            mend="name a folder that you may write to, such as system.output.root=outputs",
        )

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.yaml``, every value resolved, the run's own name included."""
        named = {**config, "training": {**config["training"], "run_id": self.run_id}}
        write_text(self.path / "config.yaml", config_text(named))

    def check_same_experiment(self, config: dict[str, Any]) -> None:
        """Compare the config with that of the run that is resumed, its layer kernels and their compilation left out.

        Raises
        ------
        UserError
            Naming each key of the data, graph, model and task that differs.
        """
        stored = self._stored_config()
        problems = [
            Problem(
                f"run {self.run_id!r} was trained with {key}={_short(before)}, this config has {_short(now)}",
                where=key,
                mend=f"give the run's own value, or start a new run from it with training.fork_run_id={self.run_id}",
            )
            for section in EXPERIMENT_SECTIONS
            for key, before, now in _differences(section, stored.get(section), config.get(section))
            if not _is_of_kernels(key)
        ]
        if problems:
            raise UserError.collect(problems)

    def _stored_config(self) -> dict[str, Any]:
        file = self.path / "config.yaml"
        try:
            stored = yaml.safe_load(file.read_bytes())
        except FileNotFoundError:
            stored, reason = None, "is missing"
        except (OSError, yaml.YAMLError) as cause:
            stored, reason = None, f"can't be read: {' '.join(str(cause).split())}"
        else:
            reason = "holds no config"
        if isinstance(stored, dict) and all(isinstance(stored.get(name), dict) for name in EXPERIMENT_SECTIONS):
            return stored
        raise UserError(
            f"run {self.run_id!r} can't be gone on with: its config.yaml {reason}, so nothing tells what was trained",
            where=str(file),
            mend=f"start a new run from its weights: training.fork_run_id={self.run_id}",
        )


def find_checkpoint(root: Path, reference: str, where: str = "training.fork_run_id") -> Path:
    """Return the checkpoint that the config names at `where`: that of a run under `root`, or a file.

    Raises
    ------
    UserError
        If there is neither.
    """
    run = RunFolder(root, reference)
    if run.last_checkpoint is not None:
        return run.last_checkpoint
    if Path(reference).is_file():
        return Path(reference)
    runs = sorted(folder.parent.parent.name for folder in root.glob("*/checkpoints/last.ckpt"))
    raise UserError(
        f"no checkpoint of run {reference!r} under {root}, and no file of that name",
        where=where,
        allowed="a run that has checkpoints/last.ckpt" + (f": {', '.join(runs[-8:])}" if runs else "; there is none"),
        mend="name one of them, the path of a checkpoint, or the right system.output.root",
    )


def resolved(config: Config) -> dict[str, Any]:
    """Return the whole config as plain values, names as in YAML."""
    return config.model_dump(mode="json", by_alias=True)


def config_text(config: dict[str, Any]) -> str:
    """Return a resolved config as YAML."""
    return yaml.safe_dump(config, sort_keys=False)


def _differences(key: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*before, *now]))
        return [d for name in keys for d in _differences(f"{key}.{name}", before.get(name), now.get(name))]
    return [] if before == now else [(key, before, now)]


def _is_of_kernels(key: str) -> bool:
    """Tell whether a key is ``model.layer_kernels``, ``model.encoder.layer_kernels``, ``model.compile`` or below."""
    parts = key.split(".")
    return parts[0] == "model" and any(name in parts[1:3] for name in KERNEL_KEYS)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
