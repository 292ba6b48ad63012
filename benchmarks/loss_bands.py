"""Whether fast settings train as the plain ones do: loss curves beside a band of seeds, and step by step in 32 bits.

Run: python benchmarks/loss_bands.py              (a GPU, under three minutes)
     python benchmarks/loss_bands.py --quick      (a test of the script on a CPU: tiny models, other settings)

The config train with a larger model, trained as the command trains it: real batches in their order, Lightning's loop,
clipping, optimiser, schedule. `eager` is that config as it stands, in bf16-mixed with five seeds of weights and of the
order of the samples. Each fast setting then trains from the weights and on the batches of one of these seeds, twice:

- in bf16-mixed over all steps: its curve has to stay in the band between the lowest and the highest of the seeds;
- in 32-true over the first steps: each loss has to be that of `eager` in 32-true to 1e-5.

Writes results/loss_bands.json and docs/images/loss_bands.png; status 1 if a setting trains otherwise.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from etesian.commands import common
from etesian.compose import compose
from etesian.errors import EXIT_CODE, UserError, format_error
from etesian.kernels.bench.compiled import forget_compiled
from etesian.kernels.bench.results import write_results
from etesian.kernels.resolve import ComponentKernels, resolve_kernels
from etesian.kernels.triton_kernels import tuning
from etesian.outputs import check_writable
from etesian.plots.bands import plot_loss_bands
from etesian.runtime.device import DeviceClock, get_device
from etesian.schema.config import Config
from etesian.training.environment import environment
from etesian.training.experiment import Experiment, check_experiment
from etesian.training.trial import Trial

SEEDS = (0, 1, 2, 3, 4)
WINDOW = 5
"""Steps of the running mean that every curve is smoothed with before it is compared with the band."""
ROOM = 0.1
"""How far outside a curve may be, in widths of the band there. The band touches each seed's own curve somewhere, and
rounding alone moves a curve off its own: the row `eager in 32 bits` says how far."""
TOLERANCE = 1e-5
"""Largest relative difference of a loss in 32-true. It holds over the first steps only. Operations in another order
round otherwise, by about 1e-7; AdamW divides each gradient by its own size, so where a gradient is next to nothing the
rounding decides in which direction that weight goes, and two runs part, faster as the learning rate warms up."""

COMPONENTS = ("encoder", "processor", "decoder")


def in_all(key: str, value: str) -> list[str]:
    return [f"model.{component}.{key}={value}" for component in COMPONENTS]


FUSED_PROJECTIONS = in_all("fuse_projections", "true")
FUSED_OPTIMISER = ["training.optimization.optimizer.implementation=fused"]
CAPTURED_BLOCKS = [
    "model.compile=[{module: etesian.model.block.Block, options: {backend: eager, fullgraph: true, dynamic: false}}]"
]
REFERENCE = "{_target_: etesian.kernels.reference.ReferenceGraphAttention}"
KEPT = {policy: in_all("gradient_checkpointing", policy) for policy in ("full", "selective", "offload")}
"""The policies of activation checkpointing; `eager` has none."""

ON_A_GPU: dict[str, list[str]] = {
    "triton": ["model/layer_kernels=triton"],
    "triton_mixed": ["model/layer_kernels=triton_mixed"],
    "compiled blocks": ["model/compile=blocks"],
    "fused projections": FUSED_PROJECTIONS,
    "cuda graphs": ["training.cuda_graphs=true"],
    "fused optimiser": FUSED_OPTIMISER,
    **{f"checkpointing {policy}": overrides for policy, overrides in KEPT.items()},
    "all together": ["system=h200"],
}
"""Fast settings by name; `eager` has none of them."""

ON_A_CPU: dict[str, list[str]] = {
    "reference attention": [f"model.layer_kernels.GraphAttention={REFERENCE}"],
    "captured blocks": CAPTURED_BLOCKS,
    "fused projections": FUSED_PROJECTIONS,
    "for_loop optimiser": ["training.optimization.optimizer.implementation=for_loop"],
    "fused optimiser": FUSED_OPTIMISER,
    "checkpointing full": KEPT["full"],
    "checkpointing selective": KEPT["selective"],
    "all together": [*CAPTURED_BLOCKS, *FUSED_PROJECTIONS, *FUSED_OPTIMISER, *KEPT["full"]],
}  # fmt: skip
"""Those that a CPU can do, for --quick."""


@dataclass(frozen=True)
class Plan:
    """What is trained: overrides of config `train`, the fast settings, and for how many steps in each precision."""

    base: tuple[str, ...]
    fast: dict[str, list[str]]
    steps: int
    exact_steps: int


MODEL = ("graph.nodes.hidden.resolution=3", "model.num_channels=256", "model.processor.num_layers=4")
SMALL = ("graph.nodes.hidden.resolution=1", "model.num_channels=16", "dataloader.batch_size.training=1",
         "model.processor.num_layers=1", "training.optimization.lr_scheduler.warmup_t=5")  # fmt: skip
FULL = Plan((*MODEL, "system.hardware.accelerator=cuda"), ON_A_GPU, steps=100, exact_steps=10)
QUICK = Plan(SMALL, ON_A_CPU, steps=12, exact_steps=5)

Curve = NDArray[np.float64]


def main() -> int:
    options, console = parse(), Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) if options.quick else common.cache_dir()
            return run(QUICK if options.quick else FULL, options, cache, console)
    except UserError as error:
        print(format_error(error), file=sys.stderr)
        return EXIT_CODE


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models on a CPU; writes only what is named")
    parser.add_argument("--output", type=Path, help="default: results/loss_bands.json beside this file")
    parser.add_argument("--picture", type=Path, help="default: docs/images/loss_bands.png")
    options = parser.parse_args()
    if not options.quick:
        here = Path(__file__).resolve().parent
        options.output = options.output or here / "results" / "loss_bands.json"
        options.picture = options.picture or here.parent / "docs" / "images" / "loss_bands.png"
    return options


def run(plan: Plan, options: argparse.Namespace, cache: Path, console: Console) -> int:
    """Train, compare, print and write."""
    start = time.perf_counter()
    for path, where in ((options.output, "--output"), (options.picture, "--picture")):
        if path is not None:
            check_writable(path, where)
    try:
        device = get_device("cpu" if options.quick else "cuda:0")
    except UserError as error:
        raise UserError(error.args[0], mend="run it on a GPU, or --quick, which is a test of the script") from error
    torch.set_float32_matmul_precision("highest")  # no TF32
    tuning.keep_in(cache)
    common.keep_compiled(cache)
    runs = Runs(plan, cache, lambda text: console.print(f"{time.perf_counter() - start:5.0f} s  {text}", style="dim"))
    found = compare(plan, runs.curve)
    found["environment"] = environment(sys.argv)
    found["settings"] |= {
        "quick": options.quick, "device_name": DeviceClock(device).name, "base": list(plan.base),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    show(found, console)
    if options.output is not None:
        write_results(options.output, found)
        console.print(f"results: {options.output}", soft_wrap=True)
    if options.picture is not None:
        draw(found, options.picture)
        console.print(f"picture: {options.picture}", soft_wrap=True)
    return 0 if all(setting["same"] for setting in found["fast"]) else 1


class Runs:
    """Trains the settings of a plan one after the other, on one dataset and graph.

    Every setting is composed and its kernels are resolved before the first is trained.
    """

    def __init__(self, plan: Plan, cache: Path, say: Callable[[str], None]) -> None:
        self.plan, self.say = plan, say
        for overrides in plan.fast.values():
            self._composed(overrides)
        config, _ = self._composed([])
        self.checked = check_experiment(config, cache, probe=False)

    def curve(self, name: str, precision: str, seed: int, steps: int) -> list[float]:
        """Return the loss of each step of a setting; `eager` is the config without one."""
        began = time.perf_counter()
        overrides = [f"training.precision={precision}", f"training.seed={seed}", f"training.max_steps={steps}"]
        config, kernels = self._composed([*overrides, *self.plan.fast.get(name, [])])
        losses = trained(replace(self.checked, config=config, kernels=kernels))
        self.say(f"{name}, {precision}, seed {seed}: {steps} steps in {time.perf_counter() - began:.1f} s")
        return losses

    def _composed(self, overrides: list[str]) -> tuple[Config, ComponentKernels]:
        given = {line.partition("=")[0] for line in overrides}
        rest = () if "training.max_steps" in given else ("training.max_steps=1",)
        lines = ["training.max_epochs=null", *self.plan.base, *rest, *overrides]
        composed = compose("train", None, lines)
        config, preset = common.check_tree(composed), composed.choices.get("model/layer_kernels")
        return config, resolve_kernels(config.model, preset=preset, overrides=lines, preset_slots=composed.preset_slots)


def trained(experiment: Experiment) -> list[float]:
    """Train a setting from its first weights on; nothing that it compiled or recorded stays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*srun.*")
        losses = Trial(experiment).train(experiment.config)
    forget_compiled()
    gc.collect()  # modules hold themselves through their compiled forward
    DeviceClock(experiment.device).release()
    return losses


def compare(plan: Plan, curve: Callable[[str, str, int, int], list[float]]) -> dict[str, Any]:
    """Train `eager` and every fast setting, and return curves and verdicts in plain values.

    Parameters
    ----------
    plan : Plan
        What is trained.
    curve : callable
        Returns the losses of a setting, precision, seed and number of steps.
    """
    seeds = {seed: curve("eager", "bf16-mixed", seed, plan.steps) for seed in SEEDS}
    band = Band.of(list(seeds.values()))
    seed = min(SEEDS, key=lambda seed: float(np.abs(band.position(seeds[seed])).mean()))
    exact = curve("eager", "32-true", seed, plan.steps)
    control = {"losses": _rounded(exact), "band": band.judge(exact, seeds[seed])}
    fast = []
    for name, overrides in plan.fast.items():
        losses = curve(name, "bf16-mixed", seed, plan.steps)
        short = curve(name, "32-true", seed, plan.exact_steps)
        verdict, equality = band.judge(losses, seeds[seed]), judge_exact(short, exact)
        fast.append({
            "name": name, "overrides": overrides, "losses": _rounded(losses), "band": verdict, "exact": equality,
            "same": verdict["inside"] and equality["equal"],
        })  # fmt: skip
    return {
        "format": 1,
        "settings": {"steps": plan.steps, "exact_steps": plan.exact_steps, "window": WINDOW, "room": ROOM,
                     "tolerance": TOLERANCE, "seed": seed},
        "seeds": {str(seed): _rounded(losses) for seed, losses in seeds.items()},
        "eager in 32 bits": control,
        "fast": fast,
    }  # fmt: skip


@dataclass(frozen=True)
class Band:
    """The lowest and the highest of smoothed curves at each step; the first value is the mean of steps 1 to WINDOW."""

    low: Curve
    high: Curve

    @classmethod
    def of(cls, curves: list[list[float]]) -> Band:
        smoothed = np.stack([smooth(curve) for curve in curves])
        return cls(smoothed.min(0), smoothed.max(0))

    def position(self, losses: list[float]) -> Curve:
        """Return where a curve lies at each step: -1 is the lower edge, 1 the upper one."""
        return (2 * smooth(losses) - self.low - self.high) / (self.high - self.low)

    def judge(self, losses: list[float], own: list[float]) -> dict[str, Any]:
        """Return whether a curve stays inside, at how many steps and how far it is outside, and how far from its own.

        Its own is that of `eager` with the same weights and batches; distances are in widths of the band.
        """
        outside = (np.abs(self.position(losses)) - 1) / 2  # in widths of the band
        return {
            "inside": bool((outside <= ROOM).all()),
            "steps_outside": int((~(outside <= 0)).sum()),
            "furthest": float(outside.max(initial=0.0)),
            "apart": float(np.abs(self.position(losses) - self.position(own)).max() / 2),
        }


def smooth(losses: list[float]) -> Curve:
    """Return the running mean over WINDOW steps."""
    return np.convolve(np.asarray(losses), np.ones(WINDOW) / WINDOW, "valid")


def judge_exact(losses: list[float], exact: list[float]) -> dict[str, Any]:
    """Return how far losses are from those of `eager`, relative, at each of their steps."""
    ours, theirs = np.asarray(losses), np.asarray(exact[: len(losses)])
    differences = np.abs(ours - theirs) / np.abs(theirs)
    return {
        "differences": [float(f"{value:.3g}") for value in differences],
        "largest": float(differences.max()),
        "equal": bool((differences <= TOLERANCE).all()),
    }


def _rounded(losses: list[float]) -> list[float]:
    return [float(f"{loss:.7g}") for loss in losses]


def show(found: Mapping[str, Any], console: Console) -> None:
    """Print the table."""
    settings = found["settings"]
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("setting", "in the band", "steps outside", "furthest", "from its own", "32 bits", "same"):
        table.add_column(head, justify="left" if head == "setting" else "right")
    control = found["eager in 32 bits"]["band"]
    table.add_row("eager in 32 bits", *_band_cells(control), "", "")
    for entry in found["fast"]:
        table.add_row(
            entry["name"], *_band_cells(entry["band"]), f"{entry['exact']['largest']:.1e}",
            "yes" if entry["same"] else "[bold red]NO[/]",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"{settings['steps']} steps in bf16-mixed from the weights and batches of seed {settings['seed']}, running "
        f"means of {settings['window']}, beside the band of {len(found['seeds'])} seeds of eager ; "
        f"furthest: outside of it, in its widths (at most {settings['room']:g}); from its own: from the curve of "
        f"eager with that seed, likewise; 32 bits: relative difference of the loss to eager's, the largest of the "
        f"first {settings['exact_steps']} steps (at most {settings['tolerance']:g}). {settings['device_name']}, "
        f"{settings['seconds']:.0f} s",
        style="dim",
    )


def _band_cells(verdict: Mapping[str, Any]) -> list[str]:
    return ["yes" if verdict["inside"] else "NO", str(verdict["steps_outside"]), f"{verdict['furthest']:.3f}",
            f"{verdict['apart']:.3f}"]  # fmt: skip


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the curves, where they lie in the band, and the differences in 32 bits."""
    band = Band.of(list(found["seeds"].values()))
    curves = {"eager": found["seeds"][str(found["settings"]["seed"])]}
    curves |= {"eager in 32 bits": found["eager in 32 bits"]["losses"]}
    curves |= {entry["name"]: entry["losses"] for entry in found["fast"]}
    plot_loss_bands(
        path, low=band.low, high=band.high, window=WINDOW, room=ROOM, tolerance=TOLERANCE,
        curves={name: smooth(losses) for name, losses in curves.items()},
        differences={entry["name"]: np.asarray(entry["exact"]["differences"]) for entry in found["fast"]},
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
