"""``anemoi-training submit``: check an experiment on the login node, then hand it to Slurm."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.commands import common
from etesian.commands.batch_script import Job, batch_script
from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    from etesian.compose import Composed
    from etesian.schema.config import Config
    from etesian.schema.slurm import SlurmSettings
    from etesian.training.run_folder import RunFolder

DESCRIPTION = "Check an experiment, write its batch script beside the run, and submit it to Slurm."
EPILOG = (
    """examples:
  anemoi-training submit system=slurm system.slurm.time=12:00:00 training.run_id=first
  anemoi-training submit system=slurm --dry-run
  anemoi-training submit system=slurm --sweep training.seed=1,2,3
  anemoi-training submit system=slurm training.run_id=first --after 1234

"""
    + common.HYDRA_EPILOG
)
_PATIENCE = 120  # seconds for sbatch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_hydra_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="check everything and print the script; submit nothing")
    parser.add_argument(
        "--sweep", action="store_true", help="a job array: a run for each combination of a=1,2 in the overrides"
    )
    parser.add_argument("--after", metavar="JOBID", help="start when that job has ended, however it ended")


def run(args: argparse.Namespace) -> int:
    """Check every run, write the script and submit it.

    Parameters
    ----------
    args : argparse.Namespace
        Config, overrides and the options above.

    Returns
    -------
    int
        Exit status 0.
    """
    from etesian.training.run_folder import RunFolder, new_run_id

    if args.after is not None and not (args.after.isascii() and args.after.isdecimal()):
        raise UserError(f"--after {args.after!r} is no job id", where="--after", allowed="a number, as squeue shows it")
    runs = [(overrides, *common.load_config(args, overrides)) for overrides in common.job_overrides(args)]
    configs = [config for _, config, _ in runs]
    _check_sweep(configs)
    given = [config.training.run_id for config in configs]
    alike = len(set(given)) == 1
    name = given[0] if given[0] is not None and alike else new_run_id()
    ids = [own if own is not None and not alike else f"{name}-{n}" for n, own in enumerate(given)]
    ids = ids if args.sweep else [name]
    jobs = []
    for number, ((overrides, config, composed), run_id) in enumerate(zip(runs, ids, strict=True)):
        folder = RunFolder(Path(config.system.output.root), run_id)
        try:
            _check(config, composed, folder, waits=args.after is not None)
        except UserError as error:
            raise _of_run(error, number, len(runs), overrides) from error
        kept = [word for word in overrides if not word.startswith("training.run_id=")]
        jobs.append([*kept, f"training.run_id={run_id}"])
    config = configs[0]
    place = (Path(config.system.output.root) / (f"sweep-{name}" if args.sweep else name)).absolute()
    job = Job(
        name=f"sweep-{name}" if args.sweep else name,
        folder=Path.cwd(),
        log=place / ("slurm-%A_%a.out" if args.sweep else "slurm-%j.out"),
        command=[*_program(config), "train", *_options(args)],
        overrides=jobs,
        is_array=args.sweep,
        after=args.after,
    )
    script = batch_script(config.system.hardware, _slurm(config), job)
    if args.dry_run:
        print(script, end="")
        return 0
    return _submit(place, script, job)


def _check(config: Config, composed: Composed, folder: RunFolder, *, waits: bool) -> None:
    """Check all of a run that a machine without its GPUs can: a GPU's kernels are resolved here and tried in the job.

    Raises
    ------
    UserError
        With what is wrong.
    """
    _slurm(config)
    from etesian.training.run_folder import resolved
    from etesian.training.run_lock import check_free

    experiment = common.check_experiment(config, composed, common.cache_dir(), here=False)
    experiment.load_graph()
    folder.check_writable()
    if not waits:
        check_free(folder)
    if folder.last_checkpoint is not None:
        folder.check_same_experiment(resolved(config))


def _slurm(config: Config) -> SlurmSettings:
    slurm = config.system.slurm
    if slurm is None:
        raise UserError(
            "system.slurm is null: nothing says what to ask Slurm for",
            where="system.slurm",
            mend="system=slurm, then system.slurm.time=12:00:00 and what your cluster asks for",
        )
    return slurm


def _check_sweep(configs: list[Config]) -> None:
    """Refuse some runs of one name (that of all names the sweep), and what the tasks of one array can't differ in."""
    names = [config.training.run_id for config in configs]
    if 1 < len(set(names)) < len(names):
        raise UserError(
            "some runs of the sweep have one name: the second would go on with the run of the first",
            where="training.run_id",
            mend="one name for the sweep, or one for each run",
        )
    systems = [config.system for config in configs]
    for key, alike in (
        ("system.slurm", all(system.slurm == systems[0].slurm for system in systems)),
        ("system.hardware", all(system.hardware == systems[0].hardware for system in systems)),
        ("system.output.root", all(system.output == systems[0].output for system in systems)),
    ):
        if not alike:
            raise UserError(
                f"the runs of the sweep differ in {key}, and the tasks of a job array are all alike",
                where=key,
                mend="submit them one by one",
            )


def _of_run(error: UserError, number: int, runs: int, overrides: list[str]) -> UserError:
    """Say which run of a sweep is wrong."""
    if runs == 1:
        return error
    said = f"run {number + 1} of {runs} ({' '.join(overrides)}) can't start, and nothing was submitted"
    return UserError.collect([*error.problems, Problem(said, "--sweep")])


def _program(config: Config) -> list[str]:
    """Return the command that runs here: by its path, so that the job needs no ``PATH``; in a container by its name."""
    if _slurm(config).container is not None:
        return ["anemoi-training"]
    program = Path(sys.argv[0])
    if program.name in ("anemoi-training", "etesian") and program.is_file():
        return [str(program.absolute())]
    return [sys.executable, "-m", "etesian"]


def _options(args: argparse.Namespace) -> list[str]:
    options = ["--config-name", args.config_name] if args.config_name != "train" else []
    return options + (["--config-dir", str(Path(args.config_dir).expanduser().absolute())] if args.config_dir else [])


def _submit(place: Path, script: str, job: Job) -> int:
    """Write the script, call sbatch, and say which job it is and where its log will be."""
    from etesian.files import write_text

    if shutil.which("sbatch") is None:
        raise UserError(
            "there is no command sbatch here",
            where="PATH",
            mend="submit from a login node of the cluster; --dry-run prints the script anywhere",
        )
    file = place / "submit.sh"
    write_text(file, script)
    command = ["sbatch", "--parsable", *([f"--dependency=afterany:{job.after}"] if job.after else []), str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        refused = " ".join((done.stderr or done.stdout).split()) if done.returncode else None
    except subprocess.TimeoutExpired:
        refused = f"no answer in {_PATIENCE} s"
    if refused is not None:
        raise UserError(
            f"Slurm refuses the job: {refused}",
            where=str(file),
            mend=f"correct system.slurm; to try by hand: {shlex.join(command)}",
        )
    number = done.stdout.strip().partition(";")[0]
    count = f" ({len(job.overrides)} runs)" if job.is_array else ""
    print(f"Job {number}{count}: {job.name}")
    print(f"script: {file}")
    print(f"log:    {str(job.log).replace('%j', number).replace('%A', number)}")
    return 0
