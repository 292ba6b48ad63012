"""The figures in README and docs/ are those of benchmarks/results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def filler():
    spec = importlib.util.spec_from_file_location("fill_figures", REPOSITORY / "docs" / "fill_figures.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_the_pages_hold_the_results(filler) -> None:
    for page in filler.pages():
        text = page.read_text()
        assert filler.fill(text) == text, f"{page.name}: run `python docs/fill_figures.py`"


def test_every_block_is_found_and_closed(filler) -> None:
    for page in filler.pages():
        text = page.read_text()
        if page.name != "contributing.md":  # which tells how a block is written
            assert text.count("<!-- figures: ") == len(filler.BLOCK.findall(text)), page.name


def test_scores_are_rounded_not_cut(filler) -> None:
    lead = {"rmse": {"model": 1.0496, "persistence": 2.0}, "ratio_to_persistence": 0.5248}
    entry = {
        "variables": {"t": {"units": "K", "lead_times": {"1 month": lead}}},
        "wall_seconds": 119.7, "seconds_to_first_step": 5.2, "steps": 860, "threads": 1, "cpu": "a processor",
        "versions": {"torch": "2.0"}, "date": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    text = filler.ncep_monthly({"configs": {"train": entry}})
    assert "| `train` | `t`, K | 1 month | 1.050 | 2.000 |  |  | 0.525 |" in text
    assert "120 s for the whole command, first optimiser step after 5 s, 860 steps; 1 thread of a processor" in text
