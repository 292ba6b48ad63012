"""``anemoi-training train``: one run, or one after the other with ``--multirun``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from etesian.commands import common
from etesian.errors import UserError

DESCRIPTION = "Train a model. With no argument: the embedded dataset, on a CPU, in about two minutes."
EPILOG = (
    """examples:
  anemoi-training train
  anemoi-training train training.max_steps=5 training.run_id=first-try
  anemoi-training train --config-name my_experiment --config-dir ~/experiments
  anemoi-training train --multirun training.seed=1,2,3

"""
    + common.HYDRA_EPILOG
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_hydra_arguments(parser, multirun=True)


def run(args: argparse.Namespace) -> int:
    """Train every job of the command line.

    Parameters
    ----------
    args : argparse.Namespace
        Config and overrides.

    Returns
    -------
    int
        Exit status 0.
    """
    if args.cfg:
        return common.print_config(args)
    for overrides in common.job_overrides(args):
        _train_one(args, overrides)
    return 0


def _train_one(args: argparse.Namespace, overrides: list[str]) -> None:
    config, composed = common.load_config(args, overrides)
    experiment = common.check_experiment(config, composed, common.cache_dir())
    from etesian.training.fit import train
    from etesian.training.report import finish
    from etesian.training.run_folder import RunFolder

    run_id = config.training.run_id or _agreed_run_id()
    folder = RunFolder(Path(config.system.output.root), run_id)
    command = ["anemoi-training", *sys.argv[1:]]
    _prepare_relaunch(args, overrides, run_id)
    folder.check_writable()
    finish(experiment, folder, train(experiment, folder, command))


def _agreed_run_id() -> str:
    """Return a new run id that every process of this job arrives at."""
    from etesian.training.run_folder import new_run_id

    if "SLURM_JOB_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        return f"slurm-{os.environ['SLURM_JOB_ID']}"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "several processes were started and none can know the others' run id",
            where="training.run_id",
            mend="name the run: training.run_id=my-run",
        )
    return new_run_id()


def _prepare_relaunch(args: argparse.Namespace, overrides: list[str], run_id: str) -> None:
    """Set the command line with which Lightning starts the other processes of this job on this machine."""
    options = ["--config-name", args.config_name]
    options += ["--config-dir", str(args.config_dir)] if args.config_dir else []
    kept = [override for override in overrides if not override.startswith("training.run_id=")]
    sys.argv = [sys.argv[0], "train", *options, *kept, f"training.run_id={run_id}"]
