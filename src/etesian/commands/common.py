"""What the commands share: the arguments that Hydra reads, the config, the cache folder."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.errors import Problem, UserError, nearest

if TYPE_CHECKING:
    from etesian.compose import Composed
    from etesian.schema.config import Config
    from etesian.training.experiment import Experiment
    from etesian.training.ranks import Ranks
    from etesian.training.slurm_task import SlurmTask

HYDRA_EPILOG = """overrides:
  key=value               set a key:               training.max_epochs=3
  group=option            choose a file:           model/layer_kernels=rmsnorm
  +key=value, ~key        add a key, delete one

A config is looked for in the current folder, then in --config-dir, then in the package.
"""


def add_hydra_arguments(parser: argparse.ArgumentParser, *, multirun: bool = False, cfg: bool = True) -> None:
    """Add the overrides and the options ``--config-name``, ``--config-dir``, ``--cfg``; ``--multirun`` on request."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="key=value or group=option")
    parser.add_argument(
        "--config-name", "-cn", default="train", metavar="NAME", help="top-level YAML (default: %(default)s)"
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder of your own YAML files")
    if cfg:
        parser.add_argument("--cfg", "-c", choices=["job"], help="print the composed config and stop")
    if multirun:
        parser.add_argument(
            "--multirun", "-m", action="store_true", help="run a job for each combination of a=1,2, one after the other"
        )


def job_overrides(args: argparse.Namespace) -> list[list[str]]:
    """Return the overrides of each job: one, or with ``--multirun`` or ``--sweep`` one for each combination."""
    if not (getattr(args, "multirun", False) or getattr(args, "sweep", False)):
        return [list(args.overrides)]
    from etesian.compose import split_jobs

    return split_jobs(args.overrides, args.config_dir)


def load_config(args: argparse.Namespace, overrides: list[str] | None = None) -> tuple[Config, Composed]:
    """Compose and check the config of a command; with ``--cfg job`` print it and exit.

    Parameters
    ----------
    args : argparse.Namespace
        With the arguments of :func:`add_hydra_arguments`.
    overrides : list of str, optional
        Overrides of one job of several; `args.overrides` when left out.

    Raises
    ------
    UserError
        With everything that is wrong.
    SystemExit
        With status 0 after ``--cfg job``.
    """
    if args.cfg:
        raise SystemExit(print_config(args))
    from etesian.compose import compose

    composed = compose(args.config_name, args.config_dir, args.overrides if overrides is None else overrides)
    return check_tree(composed), composed


def print_config(args: argparse.Namespace) -> int:
    """Print the composed config as YAML, a document for each job, and check it.

    Returns
    -------
    int
        0. A config that is wrong is printed all the same, then reported as a UserError.
    """
    from etesian.compose import compose, to_yaml

    for number, overrides in enumerate(job_overrides(args)):
        composed = compose(args.config_name, args.config_dir, overrides)
        print(("---\n" if number else "") + to_yaml(composed.tree), end="", flush=True)
        check_tree(composed)
    return 0


def check_tree(composed: Composed) -> Config:
    """Check a composed config against the schema, and its overrides for keys that no file has."""
    from etesian.schema.validate import knows, validate_config

    register_kinds()
    absent = [_absent(key, beside) for key, beside in composed.absent.items() if knows(key, composed.tree) is None]
    problems = [problem for problem in absent if problem is not None]
    try:
        config = validate_config(composed.tree)
    except UserError as error:
        found = _kinds_alone(error.problems, composed.overrides)
        reported = [problem.where for problem in found]
        raise UserError.collect([*found, *(p for p in problems if p.where not in reported)]) from None
    if problems:
        raise UserError.collect(problems)
    return config


def _kinds_alone(problems: Sequence[Problem], overrides: Sequence[str]) -> list[Problem]:
    """Put one problem in the place of all that an override of a component's kind, without its other keys, leads to."""
    left = list(problems)
    for override in overrides:
        key, _, kind = override.lstrip("+").partition("=")
        section = key.removesuffix("kind")
        if key not in ("model.encoder.kind", "model.processor.kind", "model.decoder.kind"):
            continue
        idle = [p for p in left if str(p.where).startswith(section) and "has no key" in p.what]
        if idle:
            names = ", ".join(str(problem.where).removeprefix(section) for problem in idle)
            what = f"{override} changes the kind alone, and the config has keys of another one: {names}"
            mend = f"{section.replace('.', '/').rstrip('/')}={kind} takes all keys from the file of that kind"
            left = [Problem(what, key, mend=mend), *(problem for problem in left if problem not in idle)]
    return left


def _absent(key: str, beside: list[str]) -> Problem | None:
    """Return the problem of an overridden key that a free mapping lacks.

    None for what stands in a slot of ``layer_kernels``: resolution checks it against the kernel's signature, with more
    to say, and every slot is there by its default.
    """
    from etesian.kernels.slots import SLOTS, unknown_slot

    mapping, found, rest = key.partition(".layer_kernels.")
    if found and mapping.partition(".")[0] == "model":
        slot = rest.partition(".")[0]
        return None if slot in SLOTS else unknown_slot(slot, f"{mapping}{found}{slot}")
    return Problem(f"{key} is not in the config", key, mend=_or_add(key, beside))


def _or_add(key: str, beside: list[str]) -> str:
    """Return the likely mend of a key that a free mapping lacks: another name, or the ``+`` that adds it."""
    prefix = f"{beside[0].rpartition('.')[0]}." if beside else ""
    part = key.removeprefix(prefix).partition(".")[0]
    near = nearest(part, [name.removeprefix(prefix) for name in beside])
    hint = f"did you mean {' or '.join(repr(prefix + name) for name in near)}? To add it" if near else "to add it"
    return f"{hint}: +{key}=VALUE"


def validated(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a tree as the schema has it, every key there and every default written out.

    Raises
    ------
    UserError
        With everything that is wrong.
    """
    from etesian.schema.validate import validate_config

    return validate_config(tree).model_dump(mode="json", by_alias=True)


def register_kinds() -> None:
    """Import the modules that register the kinds of models, bounds, losses and scalers."""
    import etesian.model.bounding
    import etesian.model.kinds
    import etesian.training.losses
    import etesian.training.scalers  # noqa: F401


def cache_dir() -> Path:
    """Return the folder of graphs and datasets that can be made again: ``$ETESIAN_CACHE``, or the user's cache."""
    if chosen := os.environ.get("ETESIAN_CACHE"):
        return Path(chosen).expanduser().resolve()
    import platformdirs

    return platformdirs.user_cache_path("etesian")


def keep_compiled(folder: Path) -> None:
    """Keep what ``torch.compile`` makes in a folder, for the next run; one that the environment names comes first."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))


def local_rank() -> int:
    """Return the number of this process on its machine, as torchrun, Lightning or Slurm tells it; 0 when alone."""
    told = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if not (told.isascii() and told.isdecimal()):
        raise UserError(f"LOCAL_RANK or SLURM_LOCALID is {told!r}", where="LOCAL_RANK", allowed="0, 1, 2, ...")
    return int(told)


def slurm_task() -> SlurmTask | None:
    """Return what Slurm calls this process; None where ``srun`` did not start it.

    Raises
    ------
    UserError
        If it runs in a batch job of several tasks all the same: the others would be waited for in vain.
    """
    from etesian.training.slurm_task import SlurmTask

    task, tasks = SlurmTask.read(os.environ), os.environ.get("SLURM_NTASKS", "1")
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if task is None and "SLURM_JOB_ID" in os.environ and int(tasks) > 1 and not interactive:
        raise UserError(
            f"this is a Slurm job of {tasks} tasks, and srun did not start this process: it would wait for the others",
            where="the batch script",
            mend="srun anemoi-training train ...",
        )
    return task


def check_experiment(
    config: Config, composed: Composed, cache_dir: Path, ranks: Ranks | None = None, *, here: bool = True
) -> Experiment:
    """Check a config against the machine, the kernels and the dataset.

    What kernels measure, and what is compiled, is kept in `cache_dir`. With `here` false the run takes place on another
    machine, whose GPUs this one may lack: kernels of a GPU are resolved, and not tried.

    See :func:`etesian.training.experiment.check_experiment`.
    """
    from etesian.kernels.triton_kernels import tuning
    from etesian.training.experiment import check_experiment as check

    tuning.keep_in(cache_dir)
    keep_compiled(cache_dir)
    preset = composed.choices.get("model/layer_kernels")
    return check(
        config,
        cache_dir,
        preset=preset,
        overrides=composed.overrides,
        preset_slots=composed.preset_slots,
        local_rank=local_rank(),
        ranks=ranks,
        here=here,
    )
