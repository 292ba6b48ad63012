"""Train shipped configs on the embedded dataset, each as a whole command, and record scores and times.

Run: python benchmarks/ncep_monthly.py [--configs train ncep_monthly_long] [--threads 2] [--runs FOLDER]

The scores are those that the command writes to metrics.json. Every command starts in an empty folder with an empty
cache, so that its time includes the making of the embedded store and the graph. Results of configs that are not run
stay in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etesian.training.environment import git_state

REPOSITORY = Path(__file__).resolve().parents[1]
RUN_ID = "benchmark"
STEP = re.compile(r"\bstep [1-9]\d*")
"""What the first progress line after an optimiser step holds."""
METHOD = (
    "whole command from an empty folder with an empty cache; seconds_to_first_step: from the start of the process to "
    "the first progress line after an optimiser step; cpu_seconds: user and system time of the command and its children"
)


def train(config: str, overrides: list[str], folder: Path, threads: int | None) -> dict[str, Any]:
    """Run ``anemoi-training train`` in a folder; return its times."""
    command = [sys.executable, "-m", "etesian", "train", "--config-name", config, f"training.run_id={RUN_ID}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "ETESIAN_CACHE": str(folder / "cache")}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    cpu, load = children_cpu(), os.getloadavg()[0]
    began, first = time.perf_counter(), None
    with subprocess.Popen(
        [*command, *overrides], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if first is None and STEP.search(line):
                first = time.perf_counter() - began
    wall = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"the command failed with status {process.returncode}")
    if first is None:
        raise SystemExit("the command printed no progress: diagnostics.enable_progress_bar is false?")
    return {
        "command": ["anemoi-training", *command[3:], *overrides],
        "wall_seconds": round(wall, 1),
        "seconds_to_first_step": round(first, 1),
        "cpu_seconds": round(children_cpu() - cpu, 1),
        "load_average_at_start": load,
    }


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_run(run: Path) -> dict[str, Any]:
    """Read scores, length and machine of a finished run."""
    metrics = json.loads((run / "metrics.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["val_loss"]) for row in rows if row.get("val_loss")]
    variables = {}
    for name, variable in metrics["variables"].items():
        leads = {}
        for label, entry in variable["lead_times"].items():
            rmse = {source: value["rmse"] for source, value in entry.items() if isinstance(value, dict)}
            leads[label] = {
                "rmse": rmse,
                "ratio_to_persistence": rmse["model"] / rmse["persistence"],
                "best_reference": entry["best_reference"],
                "skill": entry["skill"],
            }
        variables[name] = {"units": variable["units"], "lead_times": leads}
    return {
        "forecasts": metrics["forecasts"],
        "variables": variables,
        "steps": int(rows[-1]["step"]) + 1,
        "best_val_loss": min(losses),
        "date": environment["date"],
        "threads": environment["cpu"]["threads"],
        "cpu": environment["cpu"]["name"],
        "cores": environment["cpu"]["cores"],
        "accelerator": environment["accelerator"],
        "python": environment["python"],
        "versions": {name: found for name, found in environment["versions"].items() if found is not None},
    }


@contextlib.contextmanager
def workplace(runs: Path | None, config: str) -> Iterator[Path]:
    """Give an empty folder: one that is kept under `runs`, or a temporary one."""
    if runs is None:
        with tempfile.TemporaryDirectory(prefix="etesian-benchmark-") as folder:
            yield Path(folder)
    else:
        folder = (runs / config).resolve()
        folder.mkdir(parents=True)
        yield folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=["train"], metavar="NAME", help="default: train")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of the commands")
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of every config")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the run folders under DIR/NAME/outputs")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "ncep_monthly.json")
    args = parser.parse_args()

    results: dict[str, Any] = json.loads(args.output.read_text()) if args.output.is_file() else {"configs": {}}
    results |= {"what": "RMSE over the test period and time of training commands", "method": METHOD}
    for config in args.configs:
        with workplace(args.runs, config) as folder:
            times = train(config, args.override, folder, args.threads)
            found = read_run(folder / "outputs" / RUN_ID)
        results["configs"][config] = {**times, **found, "git": git_state(REPOSITORY)}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {args.output}; python docs/fill_figures.py puts it into the pages")


if __name__ == "__main__":
    main()
