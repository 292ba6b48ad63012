"""The peers that the mathematics is compared with, and processes that have them."""

from __future__ import annotations

from pathlib import Path

from library_site import LibrarySite, pytest_arguments, run_python

PEERS = LibrarySite(
    "peers", ("anemoi/models", "anemoi/graphs", "anemoi_models-0.19.0.dist-info", "anemoi_graphs-0.9.8.dist-info",
              "anemoi/training", "anemoi_training-0.17.1.dist-info",
              "joblib", "sklearn", "threadpoolctl.py", "trimesh", "typeguard")
)  # fmt: skip


def run_tests(file: Path, folder: Path, *options: str) -> None:
    """Run a file of tests with the peers; one that can't do without begins otherwise than pytest finds files.

    `options` are options of pytest, such as ``"-k", "name"``.
    """
    run_python("-m", *pytest_arguments(file, *options), folder=folder, sites=[PEERS], variables={})
