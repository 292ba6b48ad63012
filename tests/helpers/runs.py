"""Runs of the command ``train``, in this process or in one of their own: ``from runs import run, train``."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from etesian import cli

SMALL = [
    "--config-name", "own_data", "graph.nodes.hidden.resolution=1", "model.num_channels=16",
    "model.encoder.num_heads=2", "model.processor.num_heads=2", "model.decoder.num_heads=2",
    "model.processor.num_layers=1", "training.deterministic=true", "training.max_epochs=2",
    "training.optimization.lr_scheduler.warmup_t=2", "diagnostics.log.interval=1", "diagnostics.plot.enabled=false",
    "diagnostics.scores.lead_times=1", "data.forcing=[forcing]",
]  # fmt: skip
"""Options of a tiny model on a store of ``small_stores.write_store``."""


def command(*arguments: str, name: str = "train") -> list[str]:
    """Return the command line of a run, or of another command, in a process of its own."""
    return [sys.executable, "-m", "etesian", name, *arguments]


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of such a process: one thread, and whatever this process can import."""
    return {**os.environ, "ETESIAN_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(
    folder: Path, cache: Path, *arguments: str, check: bool = True, name: str = "train"
) -> subprocess.CompletedProcess[str]:
    """Train, or run another command, in a process of its own, in `folder`."""
    done = subprocess.run(
        command(*arguments, name=name), cwd=folder, env=environment(cache), capture_output=True, text=True, check=False
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def train(*arguments: str) -> int:
    """Train in this process, in the current folder, and return the exit status."""
    before, argv = torch.are_deterministic_algorithms_enabled(), list(sys.argv)
    try:
        return cli.main(["train", *arguments])
    finally:
        torch.use_deterministic_algorithms(before)
        sys.argv = argv


def rows(run_folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's ``metrics.csv``, as they were written."""
    with open(run_folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def losses(run_folder: Path, name: str = "train_loss") -> dict[int, str]:
    """Return a metric of each step, as it was written."""
    return {int(row["step"]): row[name] for row in rows(run_folder) if row.get(name)}


def curve(run_folder: Path, name: str = "train_loss") -> list[float]:
    """Return the values of a metric in the order of the steps."""
    return [float(value) for _, value in sorted(losses(run_folder, name).items())]


def weights(run_folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run's last checkpoint."""
    return torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]


def assert_same_run(one: Path, other: Path, names: Sequence[str] = ("train_loss", "val_loss")) -> None:
    """Compare the losses and the last weights of two runs, bit for bit."""
    for name in names:
        assert losses(one, name) == losses(other, name)
    after = weights(other)
    for name, weight in weights(one).items():
        assert torch.equal(weight, after[name]), name
