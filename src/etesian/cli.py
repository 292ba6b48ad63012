"""The command line: ``anemoi-training <command>``, also installed as ``etesian``.

Only the chosen command's module is imported, and it imports what it needs when it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from etesian.errors import EXIT_CODE, Problem, UserError, did_you_mean, format_error

PROGRAM = "anemoi-training"

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("train", "etesian.commands.train", "train a model (with no argument: the embedded example, on a CPU)"),
    ("submit", "etesian.commands.submit", "check an experiment, then submit it to Slurm"),
    ("profile", "etesian.commands.profile", "find out where the time of an experiment's training steps goes"),
    ("config", "etesian.commands.config", "show, check or copy a config"),
    ("kernels", "etesian.commands.kernels", "list, check or time what may fill the model's layers"),
    ("graph", "etesian.commands.graph", "build or describe a graph"),
    ("model", "etesian.commands.model", "print what encoder, processor and decoder of an experiment cost"),
    ("checkpoint", "etesian.commands.checkpoint", "describe a checkpoint, or make one for inference from it"),
    ("forecast", "etesian.commands.forecast", "forecast from one date with a trained model; write NetCDF or zarr"),
    (
        "evaluate",
        "etesian.commands.evaluate",
        "score a trained model over a period, beside persistence and climatology",
    ),
    ("mlflow", "etesian.commands.mlflow", "upload a run to an MLflow server"),
    ("dataset", "etesian.commands.dataset", "make a dataset to try things on"),
    ("version", "etesian.commands.version", "print the versions of what is installed"),
)
"""Name, module and help of each command."""

EXAMPLES = f"""examples:
  {PROGRAM} train
  {PROGRAM} train training.max_epochs=3 model/layer_kernels=torch
  {PROGRAM} train --config-name my_experiment --config-dir ~/experiments
  {PROGRAM} config validate --config-name my_experiment
  {PROGRAM} <command> --help
"""

_MEMORY = {
    "train": "smaller model.num_channels, model.processor.num_layers, graph.nodes.hidden.resolution or "
    "dataloader.batch_size; gradient_checkpointing: full",
    "dataset": "a coarser --grid, a smaller --truncation or fewer variables",
    "graph": "a smaller graph.nodes.hidden.resolution",
    "forecast": "a shorter --lead-time, or a machine with more memory",
    "evaluate": "a smaller --batch-size, fewer --variables, a shorter --lead-time, or a machine with more memory",
    "checkpoint": "a machine with more memory, or with less in use",
}
"""What helps a command that runs out of memory; the others have the model of ``train``."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose objections are user errors with the nearest spelling."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options["allow_abbrev"] = False
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's objection as a user error."""
        raise UserError(f"{self.prog}: {message}", mend=f"{self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices: Iterable[Any] | None = action.choices
        if choices is not None and value not in choices:
            what = "command" if not action.option_strings else f"value of {'/'.join(action.option_strings)}"
            known = [str(choice) for choice in choices]
            raise UserError(
                f"{self.prog}: {value!r} is no {what}",
                allowed=", ".join(known),
                mend=did_you_mean(str(value), known) or f"{self.prog} --help",
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process when left out.

    Returns
    -------
    int
        0 when all went well, 2 after a user's mistake, 130 after an interrupt, 143 after SIGTERM; 75 when SIGUSR1 or
        ``training.max_time`` ended a run before its last step.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without the letters of a table gets question marks
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _importing_from_here(), _ended_by_sigterm(_chosen(words)):
            return _run(words)
    except UserError as error:
        print(format_error(error), file=sys.stderr)
        return EXIT_CODE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`); keep Python from complaining again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, MemoryError, RuntimeError) as error:
        told = _of_the_machine(error, words)
        if told is None:
            raise
        said = [Problem(note) for note in getattr(error, "__notes__", ())]
        print(format_error(UserError.collect([*told.problems, *said])), file=sys.stderr)
        return EXIT_CODE


class _Ended(SystemExit):
    """SIGTERM came."""


@contextmanager
def _ended_by_sigterm(command: str | None) -> Iterator[None]:
    """Let SIGTERM unwind a command as an interrupt does, so that it leaves no half-written files.

    Training and profiling have Lightning's handler, and a program that calls :func:`main` may have its own: those stay.
    """
    here = threading.current_thread() is threading.main_thread()
    if command in ("train", "profile") or not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # tidying up is not to be cut short by another one
        raise _Ended(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _Ended:
        print("terminated", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _importing_from_here() -> Iterator[None]:
    """Let kernels of the user's be imported from the current folder, after everything that is installed."""
    before = list(sys.path)
    sys.path.append("")
    try:
        yield
    finally:
        sys.path[:] = before


_FULL = (errno.ENOSPC, errno.EDQUOT)
_CUT_SHORT = ("PytorchStreamWriter failed writing", "unexpected pos", "NetCDF: HDF error", "No space left on device")
"""How libraries say that a file was cut short."""


def _of_the_machine(error: Exception, arguments: Sequence[str]) -> UserError | None:
    """Turn what the file system or the memory refuses into a user error; None for any other fault.

    Where a mistake can be foreseen it is reported with its config key. This is for the rest: a folder that lost its
    permissions meanwhile, a name that the file system does not take, a model that does not fit.
    """
    if isinstance(error, OSError) and error.filename is not None:
        return UserError(f"{error.strerror or type(error).__name__}", where=str(error.filename))
    text = " ".join(str(error).split())
    if (isinstance(error, OSError) and error.errno in _FULL) or any(words in text for words in _CUT_SHORT):
        return UserError(
            "a file can't be written to its end: no space is left where the command writes"
            if isinstance(error, OSError)
            else f"a file can't be written to its end, as where no space is left: {text[:150]}",
            mend="make room there, or write to another place",
        )
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return UserError(
            f"the memory does not suffice: {text or type(error).__name__}",
            mend=_MEMORY.get(_chosen(arguments) or "", _MEMORY["train"]),
        )
    return None


def _chosen(words: Sequence[str]) -> str | None:
    """Return the first word that is no option: the command, if it is one."""
    return next((word for word in words if not word.startswith("-")), None)


def _run(argv: list[str]) -> int:
    parser = Parser(prog=PROGRAM, description="Train graph-transformer weather models.", epilog=EXAMPLES)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="<command>", title="commands")
    chosen = _chosen(argv)
    for name, module, text in COMMANDS:
        if name != chosen:
            commands.add_parser(name, help=text, add_help=False)
            continue
        command = importlib.import_module(module)
        epilog = getattr(command, "EPILOG", None)
        command.add_arguments(commands.add_parser(name, help=text, description=command.DESCRIPTION, epilog=epilog))
    args, rest = parser.parse_known_args(argv)
    if args.version:
        from etesian import __version__

        print(f"etesian {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0 if not argv else EXIT_CODE
    _take_rest(args, rest, parser)
    return int(importlib.import_module({name: module for name, module, _ in COMMANDS}[args.command]).run(args))


def _take_rest(args: argparse.Namespace, rest: list[str], parser: argparse.ArgumentParser) -> None:
    """Add overrides that stand after an option to the others; refuse whatever else is left."""
    unknown = [word for word in rest if word.startswith("-")]
    if unknown or (rest and not hasattr(args, "overrides")):
        name = (unknown or rest)[0].partition("=")[0]
        known = [option for option in _options(parser, args.command) if option != "--version"]
        what = f"{name!r} is no option" if unknown else f"{name!r} is one argument too many"
        raise UserError(
            f"{PROGRAM} {args.command}: {what}",
            allowed=", ".join(known),
            mend=did_you_mean(name, known) or f"{PROGRAM} {args.command} --help",
        )
    if rest:
        args.overrides = [*args.overrides, *rest]


def _options(parser: argparse.ArgumentParser, command: str | None = None) -> list[str]:
    """Return the long options of a parser and of the subparsers under it (of one command when named)."""
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                if command in (None, name):
                    options += _options(child)
        options += [option for option in action.option_strings if option.startswith("--")]
    return sorted(set(options))
