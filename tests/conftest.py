"""Fixtures that every part's tests may use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from small_stores import write_store

pytest_plugins = ["etesian.testing"]


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of small datasets: ``make_store("name.zarr", dates=..., ...)``.

    The options are those of :func:`small_stores.write_store`.
    """

    def make(name: str | Path = "dataset.zarr", **options: Any) -> Path:
        return write_store(tmp_path / name, **options)

    return make


@pytest.fixture(autouse=True)
def _own_determinism() -> Iterator[None]:
    """Set back what a run in this process may have set for all of it."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
