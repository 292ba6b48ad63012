"""``anemoi-training train``: one run, or one after the other with ``--multirun``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.commands import common
from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    from etesian.compose import Composed
    from etesian.schema.config import Config
    from etesian.training.ranks import Ranks
    from etesian.training.run_folder import RunFolder
    from etesian.training.slurm_task import SlurmTask
    from etesian.training.stop_request import Stopped, StopRequest

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
    task = common.slurm_task()
    ranks = _ranks(task)
    with _together(ranks):
        jobs = [(overrides, *common.load_config(args, overrides)) for overrides in common.job_overrides(args)]
        _check_run_ids([config.training.run_id for _, config, _ in jobs])
        for _, config, _ in jobs:
            _check_tasks(task, config, len(jobs))
    for number, (overrides, config, composed) in enumerate(jobs, start=1):
        if len(jobs) > 1:
            print(f"Job {number} of {len(jobs)}: {' '.join(overrides)}", flush=True)
        try:
            run_id = config.training.run_id or _agreed_run_id(task, number if len(jobs) > 1 else None)
            _prepare_relaunch(args, overrides, run_id)
            _train_one(run_id, config, composed, task, ranks)
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


def _train_one(run_id: str, config: Config, composed: Composed, task: SlurmTask | None, ranks: Ranks | None) -> None:
    """Train one job; where it is asked to stop, say how it goes on and, if the config says so, requeue it."""
    from etesian.training.run_folder import RunFolder
    from etesian.training.stop_request import Stopped, StopRequest

    folder = RunFolder(Path(config.system.output.root), run_id)
    stop = StopRequest(config.training.max_seconds)
    try:
        with stop.listening():
            _train_in(folder, config, composed, stop, task, ranks)
    except Stopped as stopped:
        if _is_first(task):
            _after_stop(stopped, folder, config, task)
        raise


def _train_in(
    folder: RunFolder, config: Config, composed: Composed, stop: StopRequest, task: SlurmTask | None,
    ranks: Ranks | None,
) -> None:  # fmt: skip
    """Check the experiment, take the run folder and train."""
    command = ["anemoi-training", *sys.argv[1:]]
    with _together(ranks):
        _check_trackers(config, task)
    experiment = common.check_experiment(config, composed, common.cache_dir(), ranks)
    from etesian.training.fit import train
    from etesian.training.report import finish
    from etesian.training.run_lock import RunLock
    from etesian.training.tracking.open import tracking

    with ExitStack() as held:
        with _together(ranks):
            folder.check_writable()
            lock = held.enter_context(RunLock(folder, task)) if _is_first(task) else None
            trackers = held.enter_context(tracking(config.diagnostics.log, folder)) if _is_first(task) else []
        finish(experiment, folder, train(experiment, folder, command, stop, lock, trackers))


def _check_trackers(config: Config, task: SlurmTask | None) -> None:
    """Check, in the first process and before anything is opened, that what the run is to be logged to is there."""
    from etesian.training.tracking.libraries import check_libraries

    log = config.diagnostics.log
    check_libraries(log)
    if log.mlflow.enabled and _is_first(task):
        from etesian.training.tracking.mlflow_server import check_server

        check_server(log.mlflow)


def _after_stop(stopped: Stopped, folder: RunFolder, config: Config, task: SlurmTask | None) -> None:
    """Say what became of a run that was asked to stop, and requeue its job.

    SIGTERM is what Slurm sends to a job that is cancelled, or that Slurm itself puts back into the queue; so the job is
    requeued after SIGUSR1 and at ``training.max_time`` only.
    """
    kept = folder.checkpoints / "last.ckpt"
    state = f"{kept} is whole" if kept.is_file() else "before its first checkpoint"
    slurm = config.system.slurm
    if task is not None and slurm is not None and slurm.requeue and stopped.reason != "SIGTERM":
        print(f"run {folder.run_id} stopped by {stopped.reason}, {state}; requeueing job {task.name}", file=sys.stderr)
        sys.stderr.flush()
        task.requeue()
        return
    again = f"the same command with training.run_id={folder.run_id} goes on"
    print(f"run {folder.run_id} stopped by {stopped.reason}, {state}: {again}", file=sys.stderr)


def _is_first(task: SlurmTask | None) -> bool:
    """Tell whether this is the first process of a run, which Slurm, torchrun or Lightning may have started."""
    if task is not None:
        return task.rank == 0
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "NODE_RANK", "LOCAL_RANK"))


def _ranks(task: SlurmTask | None) -> Ranks | None:
    """Connect the tasks of a Slurm step; None where there is one process, or something else connects them."""
    if task is None or task.tasks == 1:
        return None
    from etesian.training.ranks import Ranks

    return Ranks(task)


def _together(ranks: Ranks | None) -> AbstractContextManager[None]:
    return nullcontext() if ranks is None else ranks.agree()


def _check_tasks(task: SlurmTask | None, config: Config, jobs: int) -> None:
    """Compare the tasks that srun started with the processes that the config asks for."""
    if task is None:
        return
    task.check_size(config)
    if jobs > 1 and task.tasks > 1:
        raise UserError(
            f"{jobs} jobs one after the other in one Slurm job of {task.tasks} tasks",
            where="--multirun",
            mend="a job array: anemoi-training submit --sweep",
        )


def _agreed_run_id(task: SlurmTask | None, number: int | None) -> str:
    """Return a run id that every process of this job arrives at: new, or with Slurm the job's, so that it goes on."""
    from etesian.training.run_folder import new_run_id

    if task is not None:
        return task.run_id + (f"-{number}" if number is not None else "")
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
