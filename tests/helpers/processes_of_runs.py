"""Runs of several processes: what is left of them, and whether they did what others did."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest
from runs import curve, losses


def alive(mark: str) -> list[int]:
    """Processes that hold `mark` in their command line, after what ends by itself has ended."""
    for _ in range(30):
        found = [p.pid for p in psutil.process_iter(["cmdline"]) if any(mark in a for a in p.info["cmdline"] or ())]
        if not found:
            return []
        time.sleep(0.1)
    return found


def assert_close(one: Path, two: Path) -> None:
    """Compare losses and learning rates of two runs, to rounding."""
    for name in ("train_loss", "val_loss", "lr"):
        assert list(losses(one, name)) == list(losses(two, name))
        assert curve(two, name) == pytest.approx(curve(one, name), rel=1e-9)


def assert_close_scores(one: Path, two: Path) -> None:
    """Compare the scores at the end of two runs, to rounding."""

    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            return [number for key in sorted(value) for number in numbers(value[key])]
        if isinstance(value, list):
            return [number for entry in value for number in numbers(entry)]
        return [float(value)] if isinstance(value, int | float) else []

    first, second = (numbers(json.loads((folder / "metrics.json").read_text())) for folder in (one, two))
    assert len(first) > 8
    assert second == pytest.approx(first, rel=1e-9)
