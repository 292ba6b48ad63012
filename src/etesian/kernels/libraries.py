"""Libraries that kernels come from: what installs each, and whether it is there; nothing is imported."""

from __future__ import annotations

import importlib.metadata

EXTRAS = {
    "flash_attn": ("flash-attn", "flash_attn"),
    "liger_kernel": ("liger-kernel", "liger"),
    "transformer_engine": ("transformer-engine", "transformer_engine"),
    "triton": ("triton", "triton"),
}
"""Import name to (distribution, extra of etesian that installs it)."""

ADAPTERS = {
    "etesian.kernels.attention.flash": "flash_attn",
    "etesian.kernels.liger": "liger_kernel",
    "etesian.kernels.triton_kernels.attention": "triton",
}
"""Module of this package to the import name of the library that its kernels come from, or are compiled by."""


OTHER_NAMES = {"triton": ("pytorch-triton", "pytorch-triton-rocm", "triton-rocm")}
"""Names under which builds of torch bring a distribution along."""


def top_library(target: str) -> str:
    """Return the import name of the library that a dotted path leads to, through an adapter where it is one."""
    return ADAPTERS.get(target.rpartition(".")[0], target.partition(".")[0])


def installation(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'etesian[{extra}]'"


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, under whichever of its names, or None."""
    for name in (distribution, *OTHER_NAMES.get(distribution, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
