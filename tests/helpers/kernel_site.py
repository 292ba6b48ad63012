"""The folder with the optional kernel libraries, and processes that have them: ``from kernel_site import run``.

The environment of the tests is without those libraries, as an installation without extras is. ``make test`` installs
them (``tests/kernels.txt``) into ``.kernels``; ``ETESIAN_TEST_KERNELS`` names another folder that holds them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARIES = ("liger_kernel", "triton")


def site() -> Path:
    """Return the folder; a test that wants it fails where it is not, as nothing else runs those kernels."""
    folder = Path(os.environ.get("ETESIAN_TEST_KERNELS") or REPOSITORY / ".kernels").resolve()
    missing = [name for name in LIBRARIES if not (folder / name).is_dir()]
    if missing:
        pytest.fail(f"{folder} lacks {', '.join(missing)}: run `make kernels`, or set ETESIAN_TEST_KERNELS to a "
                    f"folder where `pip install --no-deps --target FOLDER -r tests/kernels.txt` was run")  # fmt: skip
    return folder


def environment(*, interpreter: bool = True) -> dict[str, str]:
    """Return the environment of a process that has the libraries, and whatever this process can import."""
    paths = [*(path or os.getcwd() for path in sys.path), str(site())]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": str(int(interpreter))}
    return {**os.environ, **own}


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
    command = [sys.executable, *(["-m", "interpreted"] if interpreter else file), *program]
    done = subprocess.run(
        command,
        cwd=folder, env=environment(interpreter=interpreter) | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if check and done.returncode != 0:
        pytest.fail(f"{' '.join(program)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def run_tests(file: Path, folder: Path, *options: str, interpreter: bool = True) -> None:
    """Run a file of tests with those libraries; one that can't do without begins otherwise than pytest finds files.

    `options` are options of pytest, such as ``"-k", "name"``; `interpreter` as for :func:`run`. What Triton compiles
    is kept in `folder`.
    """
    run("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(REPOSITORY), "-c",
        str(REPOSITORY / "pyproject.toml"), str(file), *options, folder=folder, interpreter=interpreter,
        TRITON_CACHE_DIR=str(folder / "compiled"))  # fmt: skip
