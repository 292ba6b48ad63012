"""What a run ran on, for ``environment.json``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

DISTRIBUTIONS = (
    "etesian", "torch", "torch-geometric", "pytorch-lightning", "triton", "liger-kernel", "transformer-engine",
    "numpy", "scipy", "xarray", "zarr", "numcodecs", "netCDF4", "anemoi-datasets", "anemoi-utils", "earthkit-meteo",
    "hydra-core", "omegaconf", "pydantic", "einops", "matplotlib", "rich",
)  # fmt: skip
"""Libraries whose versions may change a result; those not installed are null."""

_TIMEOUT = 10  # seconds for git


def environment(command: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
    """Collect versions, machine, card, commit and command line.

    Parameters
    ----------
    command : sequence of str
        The command line, such as ``sys.argv``.
    folder : Path, optional
        Folder whose git commit is recorded; the current one when left out.

    Returns
    -------
    dict
        JSON types only.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"name": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "accelerator": _accelerator(),
        "versions": {name: _version(name) for name in DISTRIBUTIONS},
        "git": git_state(Path.cwd() if folder is None else folder),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch and whether tracked files differ from it; None where there is no repository or no git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _accelerator() -> dict[str, Any] | None:
    """Describe the cards of this process, whatever their maker; None on a machine without one."""
    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    assert device is not None  # there is one where one is available
    module = torch.get_device_module(device)
    count = torch.accelerator.device_count()
    names = [str(module.get_device_name(index)) for index in range(count)] if hasattr(module, "get_device_name") else []
    return {
        "type": device.type,
        "count": count,
        "names": names,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": _nvidia_driver(Path("/proc/driver/nvidia/version")),
    }


def _nvidia_driver(path: Path) -> str | None:
    """Read the driver's version from the file that the NVIDIA kernel module shows."""
    try:
        found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]*)", path.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _cpu_name() -> str:
    """Return the processor's name from /proc/cpuinfo, or what Python knows of it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
