"""Libraries that kernels come from: what installs each, and whether it is there; nothing is imported."""

from __future__ import annotations

import importlib.metadata

EXTRAS = {
    "flash_attn": ("flash-attn", "flash_attn"),
    "liger_kernel": ("liger-kernel", "liger"),
    "transformer_engine": ("transformer-engine", "transformer_engine"),
}
"""Import name to (distribution, extra of etesian that installs it)."""

ADAPTERS = {"etesian.kernels.attention.flash": "flash_attn", "etesian.kernels.liger": "liger_kernel"}
"""Module of this package to the import name of the library that its kernels come from."""


def top_library(target: str) -> str:
    """Return the import name of the library that a dotted path leads to, through an adapter where it is one."""
    return ADAPTERS.get(target.rpartition(".")[0], target.partition(".")[0])


def installation(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'etesian[{extra}]'"


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
