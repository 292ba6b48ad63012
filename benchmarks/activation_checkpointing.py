"""Whole training steps with every policy of activation checkpointing, as they are and with compiled blocks.

Run: python benchmarks/activation_checkpointing.py [--config n320] [--kernels triton] [--stores DIR]
     python benchmarks/activation_checkpointing.py --quick                      (a minute on a CPU, a small model)

One policy for encoder, processor and decoder. The models take steps in turns on one batch from the same first weights.
A synthetic store of the config's grid is made in DIR where it is not there, the graph is built once. Writes
results/activation_checkpointing.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from etesian.commands.common import cache_dir, check_tree
from etesian.compose import compose
from etesian.errors import EXIT_CODE, UserError, format_error
from etesian.kernels.bench.results import write_results
from etesian.runtime.device import DeviceClock, get_device
from etesian.training.bench_steps import StepsResult, bench_steps, steps_json
from etesian.training.environment import environment
from etesian.training.experiment import Experiment, check_experiment, check_kernels
from layer_kernels import SHORT_STORE, make_store

HERE = Path(__file__).parent
POLICIES = ("none", "selective", "full", "offload")
WAYS = ("none", "blocks")
PRESET = "model/layer_kernels"

SMALL = [
    "training.max_steps=4",
    "model.processor.num_layers=1",
    "diagnostics.scores.enabled=false",
    "diagnostics.plot.enabled=false",
]
BLOCKS_CAPTURED = (
    "model.compile=[{module: etesian.model.block.Block, options: {fullgraph: true, dynamic: false, backend: eager}}]"
)
"""Blocks as graphs that are run as they are: what a CPU does in seconds."""


def main() -> int:
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    try:
        results = measure(options, console)
    except UserError as error:
        print(format_error(error), file=sys.stderr)
        return EXIT_CODE
    console.print(table(results))
    if options.output is not None:
        write_results(options.output, results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=("o96", "n320"), default="o96", help="default: %(default)s")
    parser.add_argument("--kernels", default="triton", help="a preset of layer kernels (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--min-time", type=float, default=2.0, help="seconds a model (default: %(default)s)")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of synthetic stores")
    parser.add_argument("--quick", action="store_true", help="a small model on a CPU; writes only what --output names")
    parser.add_argument("--output", type=Path, help="default: results/activation_checkpointing.json beside this file")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats is a whole number from 1")
    if options.quick:
        options.config, options.kernels, options.repeats, options.min_time = "debug", "torch", 2, 1e-3
    elif options.output is None:
        options.output = HERE / "results" / "activation_checkpointing.json"
    return options


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Time every policy with and without compiled blocks; return what was found in plain values."""
    try:
        device = get_device("cpu" if options.quick else "cuda:0")
    except UserError as error:
        raise UserError(error.args[0], mend="run it on a GPU, or --quick, which is a test of the benchmark") from error
    common = SMALL if options.quick else [
        *SHORT_STORE, f"system.input.dataset={make_store(options.config, options.stores)}",
    ]  # fmt: skip
    variants, missing = experiments(options, [*common, f"{PRESET}={options.kernels}"])
    bench = bench_steps(
        variants, own="", repeats=options.repeats, min_seconds=options.min_time, device=device,
        say=lambda text: console.print(text, style="dim", markup=False),
    )  # fmt: skip
    bench.results.extend(missing)
    config = variants[0][1].config
    steps = steps_json(bench)
    for entry in steps["presets"]:
        entry["policy"], entry["compile"] = entry.pop("preset").split("+")
        del entry["own"]
    steps["models"] = sorted(steps.pop("presets"), key=lambda entry: (WAYS.index(entry["compile"]),
                                                                      POLICIES.index(entry["policy"])))  # fmt: skip
    return {
        "environment": environment(sys.argv),
        "settings": {
            "config_name": options.config, "layer_kernels": options.kernels, "precision": config.training.precision,
            "channels": config.model.num_channels, "layers": config.model.processor.num_layers,
            "repeats": options.repeats, "device_name": DeviceClock(device).name,
        },
        "steps": steps,
    }  # fmt: skip


def experiments(
    options: argparse.Namespace, common: list[str]
) -> tuple[list[tuple[str, Experiment]], list[StepsResult]]:
    """Return an experiment for each policy and way to compile; and those that are refused here, with the reason."""
    checked: Experiment | None = None
    variants, missing = [], []
    for way in WAYS:
        captured = options.quick and way == "blocks"
        compiled = BLOCKS_CAPTURED if captured else f"model/compile={way}"
        for policy in POLICIES:
            name = f"{policy}+{way}"
            chosen = [f"model.{part}.gradient_checkpointing={policy}" for part in ("encoder", "processor", "decoder")]
            try:
                composed = compose(options.config, None, [*common, compiled, *chosen])
                config = check_tree(composed)
                if checked is None:
                    checked = check_experiment(config, cache_dir(), preset=options.kernels)
                kernels, _ = check_kernels(config, preset=options.kernels, overrides=composed.overrides)
            except UserError as error:
                if checked is None:
                    raise
                problem = error.problems[0]
                missing.append(StepsResult(name, reason=problem.what, mend=problem.mend or ""))
                continue
            variants.append((name, replace(checked, config=config, kernels=kernels)))
    return variants, missing


def table(results: dict[str, Any]) -> Table:
    """Lay out the steps of each model."""
    settings = results["settings"]
    title = f"{settings['config_name']}, {settings['layer_kernels']}, {settings['device_name']}"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("gradient_checkpointing", "model/compile"):
        shown.add_column(column, no_wrap=True)
    for column in ("step ms", "peak GB", "first s", "loss 1"):
        shown.add_column(column, justify="right", no_wrap=True)
    for model in results["steps"]["models"]:
        if model["step_ms"] is None:
            shown.add_row(model["policy"], model["compile"], "not timed")
            continue
        peak = "" if model["peak_bytes"] is None else f"{model['peak_bytes'] / 1e9:.2f}"
        shown.add_row(
            model["policy"], model["compile"], f"{model['step_ms']['median']:.4g}", peak,
            f"{model['first_step_seconds']:.1f}", f"{model['first_loss']:.6g}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
