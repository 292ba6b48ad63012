"""Where a forecaster without pickle keeps what; imports nothing that takes long."""

from __future__ import annotations

from pathlib import Path

TENSORS, METADATA = "model.safetensors", "metadata.json"


def is_safe(path: Path) -> bool:
    """Tell whether a path is the folder of a forecaster without pickle."""
    return (path / TENSORS).is_file() and (path / METADATA).is_file()
