"""Libraries that lie beside the environment of the tests, and processes that have them.

The environment is without those libraries, as an installation without extras is, so that nothing can import them
unasked. ``make test`` installs each set of them into a folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class LibrarySite:
    """A folder of libraries.

    Attributes
    ----------
    name : str
        ``make NAME`` installs ``tests/NAME.txt`` into ``.NAME``; the variable ``ETESIAN_TEST_NAME`` names another
        folder that holds the same.
    contents : tuple of str
        What has to lie in the folder.
    """

    name: str
    contents: tuple[str, ...]

    def folder(self) -> Path:
        """Return the folder; a test that wants it fails where it is not, as nothing else runs what it is for."""
        variable = f"ETESIAN_TEST_{self.name.upper()}"
        folder = Path(os.environ.get(variable) or REPOSITORY / f".{self.name}").resolve()
        missing = [name for name in self.contents if not (folder / name).exists()]
        if missing:
            pytest.fail(
                f"{folder} lacks {', '.join(missing)}: run `make {self.name}`, or set {variable} to a folder "
                f"where `pip install --no-deps --target FOLDER -r tests/{self.name}.txt` was run"
            )
        return folder


def run_python(
    *command: str, folder: Path, sites: Sequence[LibrarySite], variables: Mapping[str, str], check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that has the libraries, and whatever this process can import.

    Parameters
    ----------
    *command : str
        What follows the name of the interpreter: ``"-m", "etesian", "train"``.
    folder : Path
        Where to run it.
    sites : sequence of LibrarySite
        The libraries.
    variables : mapping
        Of the environment, beside those of this process.
    check : bool
        Whether another exit status than 0 fails the test, with all that was printed.
    """
    paths = [*(path or os.getcwd() for path in sys.path), *(str(site.folder()) for site in sites)]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder, env={**os.environ, **own, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if check and done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def pytest_arguments(file: Path, *options: str) -> list[str]:
    """Return how pytest runs one file of tests, whatever its name, by the settings of the repository."""
    alone = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [
        "pytest",
        *alone,
        "--rootdir",
        str(REPOSITORY),
        "-c",
        str(REPOSITORY / "pyproject.toml"),
        str(file),
        *options,
    ]
