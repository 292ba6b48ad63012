"""``version``: what is installed, without importing it."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from etesian import __version__

DESCRIPTION = "Print the versions of etesian, Python and the libraries that matter to a run."
EPILOG = """example:
  anemoi-training version
"""

LIBRARIES = (
    "torch",
    "torch-geometric",
    "pytorch-lightning",
    "hydra-core",
    "omegaconf",
    "pydantic",
    "anemoi-datasets",
    "numpy",
    "zarr",
    "triton",
    "liger-kernel",
    "transformer-engine",
    "tensorboard",
    "mlflow-skinny",
    "wandb",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command takes no argument."""


def run(args: argparse.Namespace) -> int:
    """Print a line for each."""
    rows = [("etesian", __version__), ("python", platform.python_version())]
    rows += [(name, _version(name)) for name in LIBRARIES]
    for name, version in rows:
        print(f"{name:<20}{version}")
    return 0


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
