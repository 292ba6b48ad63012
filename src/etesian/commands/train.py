"""``anemoi-training train``: one run, or one after the other with ``--multirun``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.commands import common
from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    from etesian.compose import Composed
    from etesian.schema.config import Config

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
    jobs = [(overrides, *common.load_config(args, overrides)) for overrides in common.job_overrides(args)]
    _check_run_ids([config.training.run_id for _, config, _ in jobs])
    for number, (overrides, config, composed) in enumerate(jobs, start=1):
        if len(jobs) > 1:
            print(f"Job {number} of {len(jobs)}: {' '.join(overrides)}", flush=True)
        try:
            _train_one(args, overrides, config, composed)
        except UserError as error:
            raise _with_number(error, number, len(jobs)) from error
    return 0


def _check_run_ids(names: list[str | None]) -> None:
    """Refuse jobs of one name: the second would go on with the first."""
    twice = sorted({name for name in names if name is not None and names.count(name) > 1})
    if twice:
        raise UserError(
            f"{names.count(twice[0])} jobs are named {twice[0]!r}: the second would go on with the run of the first",
            where="training.run_id",
            allowed="null, which names each job anew, or a name for each",
            mend="'training.run_id=seed-${training.seed}', with a key that the jobs differ in",
        )


def _with_number(error: UserError, number: int, jobs: int) -> UserError:
    """Say which of several jobs stopped, and what became of the others."""
    if jobs == 1:
        return error
    before = "none before it" if number == 1 else "those before it are done"
    after = "it was the last" if number == jobs else f"the {jobs - number} after it were not started"
    return UserError.collect(
        [*error.problems, Problem(f"job {number} of {jobs} stopped: {before}, {after}", where="--multirun")]
    )


def _train_one(args: argparse.Namespace, overrides: list[str], config: Config, composed: Composed) -> None:
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
