"""The batches of training against the raw read of the same chunks: samples a second, memory, processor only.

Run: python benchmarks/dataloader.py [--stores DIR] [--dates 100] [--quick] [--output FILE]

All read the same dates in the same order by as many workers. *raw* decompresses each chunk into memory and drops it, in
worker processes; *processes* and *threads* make the batches of a training run of them, with ``dataloader.workers`` of
that name. They take turns, so that other work on the machine meets all. Then the loader goes on for 200 batches and the
memory of its processes is recorded.
Synthetic stores are made in DIR, where they are not there: 15 GB for 100 dates on n320.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from torch.utils.data import DataLoader, Dataset

from etesian import cli
from etesian.data.open import Splits, open_split
from etesian.errors import EXIT_CODE
from etesian.files import write_json
from etesian.schema.dataloader import DataloaderSettings
from etesian.schema.task import TaskSettings
from etesian.training.datamodule import ForecastDataModule
from etesian.training.environment import environment

RESULTS = Path(__file__).parent / "results"

VARIABLES = {"prognostic": 72, "forcing": 24, "diagnostic": 4}
QUICK = {"prognostic": 6, "forcing": 4, "diagnostic": 1}

WARM_UP = 20
"""Batches before memory is looked at: buffers fill, libraries load."""


@dataclass(frozen=True)
class Case:
    """What is read: a store, and how many states a sample has."""

    grid: str
    path: Path
    states: int
    prefetch: int = 2

    @property
    def array(self) -> zarr.Array:
        return zarr.open_group(str(self.path), mode="r")["data"]

    def loader(self, kind: str, workers: int, batches: int | None = None) -> Any:
        """Return the batches of an epoch of training, at most so many, read by so many workers of a kind."""
        everything = {"dataset_config": {"dataset": str(self.path)}, "end": "100%"}
        ones = {"training": 1, "validation": 1, "test": 1}
        settings = DataloaderSettings.model_validate(
            {
                "batch_size": ones, "num_workers": {"training": workers}, "prefetch_factor": self.prefetch,
                "workers": kind, "limit_batches": {"training": batches},
                "training": everything, "validation": everything, "test": everything,
            }
        )  # fmt: skip
        dataset = open_split("training", settings.training, self.path.parent)
        task = TaskSettings.model_validate({"multistep_input": self.states - 1})
        module = ForecastDataModule(Splits(dataset, dataset, dataset), settings, task, 1, frozenset(), seed=0)
        return module.loader("training", 1, 0, 1, shuffle=True)


class Raw(Dataset[int]):
    """The chunks of a window, each decompressed into memory and dropped."""

    def __init__(self, path: Path, states: int) -> None:
        self.path, self.states = path, states
        self.array: zarr.Array | None = None

    def __getitem__(self, window: int) -> int:
        if self.array is None:
            self.array = zarr.open_group(str(self.path), mode="r")["data"]
        return sum(self.array[date : date + 1].nbytes for date in range(window, window + self.states))


def reader(case: Case, name: str, workers: int, epoch: int, batches: int) -> Iterable[Any]:
    """Return what is timed: a loader of training, or the raw read of the same windows by as many processes."""
    loader = case.loader("processes" if name == "raw" else name, workers, batches)
    loader.batch_sampler.set_epoch(epoch)
    if name != "raw":
        return loader
    raw = Raw(case.path, case.states)
    ahead = case.prefetch if workers else None
    return DataLoader(raw, batch_sampler=loader.batch_sampler, num_workers=workers, prefetch_factor=ahead)


def processor_seconds() -> float:
    """Return the processor time of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(case: Case, name: str, workers: int, epoch: int, batches: int) -> tuple[float, float]:
    """Return wall and processor seconds of a batch of one sample, the start and the end of the workers included."""
    source = reader(case, name, workers, epoch, batches)
    wall, processor = time.perf_counter(), processor_seconds()
    taken = sum(1 for _ in source)
    wall = time.perf_counter() - wall
    assert taken == batches, f"{taken} of {batches} batches"
    del source  # its workers end
    return wall / batches, (processor_seconds() - processor) / batches


def compare(case: Case, workers: int, rounds: int, batches: int) -> list[dict[str, Any]]:
    """Time raw read and loaders in turns, another one first each time."""
    names = ["raw", "processes", "threads"] if workers else ["raw", "processes"]
    wall: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            one, other = timed(case, name, workers, number, batches)
            wall[name].append(one)
            processor[name].append(other)
    return [
        {
            "reader": name if workers or name == "raw" else "training process",
            "workers": workers,
            "seconds_a_sample": spread(wall[name]),
            "processor_seconds_a_sample": spread(processor[name]),
            "ratio_to_raw": spread(ratios(wall[name], wall["raw"])),
            "processor_ratio_to_raw": spread(ratios(processor[name], processor["raw"])),
            "samples_per_second": 1 / statistics.median(wall[name]),
            "samples_per_second_and_worker": 1 / statistics.median(wall[name]) / max(workers, 1),
        }
        for name in names
    ]


def ratios(values: list[float], raw: list[float]) -> list[float]:
    return [value / base for value, base in zip(values, raw, strict=True)]


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def resident_bytes(process: int) -> int:
    """Return the memory of a process that is in use, shared memory included (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(case: Case, kind: str, workers: int, batches: int) -> dict[str, Any]:
    """Record the memory of the main process and of the workers after each of so many batches, over epochs."""
    loader = case.loader(kind, workers)
    main, others = [], []
    for number, _ in enumerate(endless(loader)):
        if number >= WARM_UP:
            main.append(resident_bytes(os.getpid()))
            others.append(sum(resident_bytes(child.pid or 0) for child in multiprocessing.active_children()))
        if len(main) == batches:
            break
    sample = 4 * case.states * int(np.prod(case.array.shape[1:]))
    limit = max(0.5 * sample, 16e6)
    return {
        "reader": kind,
        "workers": workers,
        "batches": batches,
        "limit_of_growth_megabytes": limit / 1e6,
        "main": growth(main, limit),
        "worker_processes": growth(others, limit),
    }


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def growth(values: list[int], limit: float) -> dict[str, Any]:
    """Fit a line to the memory after each batch; its rise over all of them must stay below the limit, bytes."""
    slope = float(np.polyfit(np.arange(len(values)), values, 1)[0])
    return {
        "first_megabytes": values[0] / 1e6,
        "largest_megabytes": max(values) / 1e6,
        "slope_megabytes_a_batch": slope / 1e6,
        "growth_megabytes": slope * len(values) / 1e6,
        "within_limit": slope * len(values) < limit,
    }


def fastest_step(grid: str) -> dict[str, Any] | None:
    """Return the fastest training step of the config of that name that was measured, on a GPU."""
    file = RESULTS / "layer_kernels.json"
    runs = json.loads(file.read_text())["runs"].values() if file.is_file() else []
    steps = [
        {"config": grid, "preset": preset["preset"], "samples_per_second": preset["samples_per_second"],
         "variables": run["end_to_end"]["batch"]["variables"], "device": run["environment"]["accelerator"]["names"][0]}
        for run in runs if run["settings"]["config_name"] == grid and run["end_to_end"] is not None
        for preset in run["end_to_end"]["presets"] if preset["step_ms"] is not None
    ]  # fmt: skip
    return max(steps, key=lambda step: step["samples_per_second"], default=None)


def make_store(folder: Path, grid: str, dates: int, variables: dict[str, int]) -> Path | None:
    """Return a synthetic store, made if it is not there; None where it can't be."""
    path = folder / f"{grid}-{sum(variables.values())}x{dates}.zarr"
    if not path.exists():
        counts = [part for role, count in variables.items() for part in (f"--{role}", str(count))]
        if cli.main(["dataset", "make", "synthetic", str(path), "--grid", grid, "--dates", str(dates), *counts]) != 0:
            return None
    return path


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one store, and say how it compares with the step."""
    entry: dict[str, Any] = {
        "grid": case.grid,
        "shape": list(case.array.shape),
        "states": case.states,
        "megabytes_a_sample": 4 * case.states * int(np.prod(case.array.shape[1:])) / 1e6,
        "compression": case.array.nbytes / case.array.nbytes_stored,
        "rounds": options.rounds,
        "readers": [],
        "environment": environment(sys.argv),
    }
    entry["batches_a_round"] = max(4, min(64, round(1e3 * options.gigabytes / entry["megabytes_a_sample"])))
    for workers in options.workers:
        entry["readers"] += compare(case, workers, options.rounds, entry["batches_a_round"])
        for found in entry["readers"][-3 if workers else -2 :]:
            print(row(case.grid, found), flush=True)
    most = max(options.workers)
    kinds = ("processes", "threads") if options.memory_batches else ()
    entry["memory"] = [memory(case, kind, most, options.memory_batches) for kind in kinds]
    entry["fastest_step"] = fastest_step(case.grid)
    entry["load_average_at_end"] = os.getloadavg()
    return entry


def row(grid: str, found: dict[str, Any]) -> str:
    wall, processor = (1e3 * found[f"{kind}seconds_a_sample"]["median"] for kind in ("", "processor_"))
    ratio, other = (found[f"{kind}ratio_to_raw"]["median"] for kind in ("", "processor_"))
    return (
        f"{grid:>6} {found['reader']:>16}, {found['workers']} workers: {wall:7.1f} ms a sample ({ratio:.2f} x raw), "
        f"processor {processor:7.1f} ms ({other:.2f} x raw), {found['samples_per_second_and_worker']:.2f} "
        "samples/s and worker"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / "dataloader.json")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of synthetic stores")
    parser.add_argument("--grids", default="o96,n320", type=lambda text: text.split(","),
                        help="what is measured; other grids in the output stay as they are")  # fmt: skip
    parser.add_argument("--dates", type=int, default=100, help="dates of a store that is made")
    parser.add_argument("--states", type=int, default=3, help="states of a sample")
    parser.add_argument("--workers", default="0,1,2", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--gigabytes", type=float, default=2.0, help="what a round reads, uncompressed; 4 batches at least"
    )
    parser.add_argument("--memory-batches", type=int, default=200, help="0 leaves memory out")
    parser.add_argument("--quick", action="store_true", help="a small store and few rounds: a test of this script")
    options = parser.parse_args()
    variables = VARIABLES
    if options.quick:
        options.grids, options.dates, variables = ["o32"], 12, QUICK
        options.rounds, options.gigabytes, options.workers, options.memory_batches = 2, 0.0, [0, 1], 200
    options.stores.mkdir(parents=True, exist_ok=True)
    cases = []
    for grid in options.grids:
        path = make_store(options.stores, grid, options.dates, variables)
        if path is None:
            return EXIT_CODE
        cases.append(measure(Case(grid, path, options.states), options))
    kept = json.loads(options.output.read_text())["cases"] if options.output.is_file() else []
    results = {
        "what": "training batches of one sample against the raw read of the same chunks, by as many workers",
        "method": "median of rounds in turns, the same windows for all in a round, the start of the workers included; "
        "other work may share the machine, which processor time does not count",
        "cases": [case for case in kept if case["grid"] not in options.grids] + cases,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, results)
    grown = [f"{case['grid']}, {kind['reader']}: {part}" for case in cases for kind in case["memory"]
             for part in ("main", "worker_processes") if not kind[part]["within_limit"]]  # fmt: skip
    if grown:
        print(f"memory grows: {'; '.join(grown)}", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
