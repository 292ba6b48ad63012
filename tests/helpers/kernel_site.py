"""The optional kernel libraries, and processes that have them: ``from kernel_site import run``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from library_site import LibrarySite, pytest_arguments, run_python

KERNELS = LibrarySite("kernels", ("liger_kernel", "triton"))


def site() -> Path:
    """Return the folder of the libraries."""
    return KERNELS.folder()


def run(
    *program: str, folder: Path, interpreter: bool = True, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a module or a file in a process that has the libraries.

    Parameters
    ----------
    *program : str
        A module, or a file that ends in ``.py``, and its arguments: ``"etesian", "train", "model.num_channels=16"``.
    folder : Path
        Where to run it.
    interpreter : bool
        Whether Triton computes on the CPU. Without it, its kernels want a GPU.
    check : bool
        Whether another exit status than 0 fails the test, with all that was printed.
    **variables : str
        Variables of the environment, such as ``ETESIAN_CACHE``.
    """
    file = [] if program[0].endswith(".py") else ["-m"]
    command = [*(["-m", "interpreted"] if interpreter else file), *program]
    variables = {"TRITON_INTERPRET": str(int(interpreter))} | variables
    return run_python(*command, folder=folder, sites=[KERNELS], variables=variables, check=check)


def run_tests(file: Path, folder: Path, *options: str, interpreter: bool = True) -> None:
    """Run a file of tests with those libraries; one that can't do without begins otherwise than pytest finds files.

    `options` are options of pytest, such as ``"-k", "name"``; `interpreter` as for :func:`run`. What Triton compiles
    is kept in `folder`.
    """
    variables = {"TRITON_CACHE_DIR": str(folder / "compiled")}
    run(*pytest_arguments(file, *options), folder=folder, interpreter=interpreter, **variables)
