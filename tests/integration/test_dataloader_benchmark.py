"""``benchmarks/dataloader.py`` in its quick form: what it compares and writes, and that memory does not grow."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

import dataloader


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a quick run writes; the memory of 200 batches is part of it."""
    folder = tmp_path_factory.mktemp("benchmark")
    arguments = ["dataloader.py", "--quick", "--stores", str(folder), "--output", str(folder / "results.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", arguments)
        assert dataloader.main() == 0
    return json.loads((folder / "results.json").read_text())


def test_every_reader_is_timed_beside_the_raw_read(results: dict) -> None:
    (case,) = results["cases"]
    assert case["shape"] == [12, 11, 1, 5248]
    assert case["megabytes_a_sample"] == pytest.approx(4e-6 * 3 * 11 * 5248)
    assert [(entry["reader"], entry["workers"]) for entry in case["readers"]] == [
        ("raw", 0), ("training process", 0), ("raw", 1), ("processes", 1), ("threads", 1),
    ]  # fmt: skip
    for entry in case["readers"]:
        assert entry["seconds_a_sample"]["min"] > 0
        assert entry["ratio_to_raw"]["median"] > 0
        assert entry["samples_per_second"] == pytest.approx(1 / entry["seconds_a_sample"]["median"])
        if entry["reader"] == "raw":
            assert entry["ratio_to_raw"] == {"median": 1.0, "min": 1.0, "max": 1.0}


def test_memory_does_not_grow_over_200_batches(results: dict) -> None:
    for memory in results["cases"][0]["memory"]:
        assert memory["batches"] == 200
        for part in ("main", "worker_processes"):
            assert memory[part]["within_limit"], (memory["reader"], part, memory[part])
        has_processes = memory["worker_processes"]["largest_megabytes"] > 0
        assert has_processes == (memory["reader"] == "processes")


def test_growing_memory_is_seen() -> None:
    flat = dataloader.growth([500_000_000 + (-1) ** number * 3_000_000 for number in range(200)], limit=16e6)
    assert flat["within_limit"]
    leak = dataloader.growth([500_000_000 + 100_000 * number for number in range(200)], limit=16e6)
    assert leak["slope_megabytes_a_batch"] == pytest.approx(0.1)
    assert leak["growth_megabytes"] == pytest.approx(20.0)
    assert not leak["within_limit"]


def test_the_raw_read_reads_what_the_window_holds(results: dict, tmp_path: Path) -> None:
    store = dataloader.make_store(tmp_path, "o32", 5, dataloader.QUICK)
    assert store is not None
    assert dataloader.Raw(store, 3)[1] == 3 * 4 * 11 * 5248


def test_it_is_compared_with_the_steps_that_were_measured() -> None:
    step = dataloader.fastest_step("n320")
    assert step is not None
    assert step["config"] == "n320"
    assert step["samples_per_second"] > 0
    assert dataloader.fastest_step("o32") is None


def test_it_is_laid_out_for_the_pages(results: dict) -> None:
    path = Path(__file__).resolve().parents[2] / "docs" / "fill_figures.py"
    text = runpy.run_path(str(path))["dataloader"](results)
    assert text.count("\n| `o32` |") == 5
    assert "| threads | 1 |" in text
    assert f"torch {torch.__version__}" in text
    assert "over 200 batches" in text
