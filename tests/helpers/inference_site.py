"""anemoi-inference as anyone installs it, and processes that have it: ``from inference_site import run``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from library_site import LibrarySite, run_python

INFERENCE = LibrarySite(
    "inference", ("anemoi/inference", "anemoi_inference-0.13.0.dist-info", "anytree", "git", "gitdb", "nvsmi.py",
                  "smmap", "termcolor", "wcwidth")
)  # fmt: skip


def run(config: Path) -> subprocess.CompletedProcess[str]:
    """Run ``anemoi-inference run`` in the folder of its YAML file."""
    command = ["-m", "anemoi.inference", "run", config.name]
    return run_python(*command, folder=config.parent, sites=[INFERENCE], variables={})
