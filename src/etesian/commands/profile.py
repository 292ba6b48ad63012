"""``anemoi-training profile``: where the time of an experiment's training steps goes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.commands import common
from etesian.errors import UserError

if TYPE_CHECKING:
    from etesian.schema.config import Config

DESCRIPTION = """\
Train an experiment for a few steps, time the parts of each (waiting for data, copying, encoder, processor, decoder,
loss, backward pass, optimiser) and say what holds them up. Nothing of a run is written: no checkpoints, scores,
pictures or logs. The results go to a folder of their own."""
EPILOG = (
    """examples:
  anemoi-training profile
  anemoi-training profile --config-name my_experiment --steps 100 system=gpu
  anemoi-training profile --detailed --output profile

"""
    + common.HYDRA_EPILOG
)
STEPS = 40
_KEY = "diagnostics.benchmark_profiler"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    common.add_hydra_arguments(parser)
    parser.add_argument(
        "--steps", metavar="N", default=str(STEPS), help="optimiser steps, the warm-up included (default: %(default)s)"
    )
    parser.add_argument(
        "--detailed", action="store_true", help="trace a few steps too: a file for Perfetto, a table of operators"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="folder of the results (default: a new one in ROOT/profile)"
    )


def run(args: argparse.Namespace) -> int:
    """Profile an experiment.

    Parameters
    ----------
    args : argparse.Namespace
        Config, overrides and options.

    Returns
    -------
    int
        Exit status 0.
    """
    steps = _whole(args.steps)
    if args.detailed:  # what torch's tracer remarks on itself
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    config, composed = common.load_config(args, [*args.overrides, *_mode(args)])
    folder = _folder(args.output, config)
    from etesian.training.benchmark_profiler import check_length

    check_length(config.diagnostics.benchmark_profiler, steps, "--steps")
    experiment = common.check_experiment(config, composed, common.cache_dir())
    from etesian.training.profile import profile_training

    _prepare_relaunch(args)
    profile_training(experiment, steps, folder)
    return 0


def _mode(args: argparse.Namespace) -> list[str]:
    """Return the override of the mode, which is the command's to choose."""
    given = [word for word in args.overrides if word.lstrip("+~").partition("=")[0] == f"{_KEY}.mode"]
    if given:
        raise UserError(
            f"{given[0]}: the command chooses the mode", where=f"{_KEY}.mode",
            mend="leave it out; --detailed is mode=detailed",
        )  # fmt: skip
    return [f"{_KEY}.mode={'detailed' if args.detailed else 'simple'}"]


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= 1_000_000:
        raise UserError(f"--steps is {text!r}", where="--steps", allowed="a whole number from 1 to 1,000,000")
    return int(text)


def _folder(output: Path | None, config: Config) -> Path:
    """Return the folder of the results, after checking that it can be made and holds nothing.

    Raises
    ------
    UserError
        If it can't, or holds something.
    """
    from etesian.training.run_folder import RunFolder, new_run_id

    if output is None:
        folder = RunFolder(Path(config.system.output.root) / "profile", new_run_id())
        folder.check_writable()
        return folder.path
    from etesian.outputs import check_writable

    folder_given = output.expanduser()
    if folder_given.exists() and not folder_given.is_dir():
        raise UserError(f"{folder_given} is no folder", where="--output", mend="the name of a folder")
    if folder_given.is_dir() and any(folder_given.iterdir()):
        raise UserError(f"the folder {folder_given} is not empty", where="--output", mend="the name of a new folder")
    check_writable(folder_given / "profile.json", "--output")
    return folder_given


def _prepare_relaunch(args: argparse.Namespace) -> None:
    """Set the command line with which Lightning starts the other processes of this job on this machine."""
    options = ["--config-name", args.config_name, "--steps", args.steps]
    options += ["--config-dir", str(args.config_dir)] if args.config_dir else []
    options += ["--detailed"] if args.detailed else []
    sys.argv = [sys.argv[0], "profile", *options, *args.overrides]
