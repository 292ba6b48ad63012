"""Whole training steps beside those of the same model made of anemoi-models 0.19: time, memory, share of the ceiling.

Run: python benchmarks/training_step.py [--only o96|n320] [--variants triton,peer]
     python benchmarks/training_step.py --inference              (forward passes without gradients)
     python benchmarks/training_step.py --processor-only         (8 layers on the level-6 mesh, no optimiser)
     python benchmarks/training_step.py --quick                  (a minute on a CPU, tiny models)

The configs o96 and n320 on synthetic stores, which are made in the folder of --stores where they are not there. All
models of a part have one graph, one batch and the same first weights, and take steps in turns: zero_grad, forward,
loss, backward, clipping, AdamW. Losses and gradients of the first step are compared, and the script ends with status 1
where they differ by more than rounding. The peer takes part where PYTHONPATH leads to it. Writes
results/training_step.json after each part; the parts that are not measured stay as they were.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

import step_report
from etesian.commands import common
from etesian.errors import EXIT_CODE, UserError, did_you_mean, format_error
from etesian.kernels.bench.results import write_results
from etesian.kernels.bench.timing import Ceilings, measure_ceilings
from etesian.kernels.machine import Machine
from etesian.kernels.record import to_json as kernels_json
from etesian.kernels.triton_kernels import tuning
from etesian.outputs import check_writable
from etesian.runtime.device import DeviceClock, get_device
from etesian.training.step_times import time_models
from peer_model import PeerOptions
from step_parts import KINDS, Part, Work, check_comparable, compose_variant, model_makers, processor_makers

TRITON = ["model/layer_kernels=triton"]
BLOCKS = [*TRITON, "model/compile=blocks"]
KEEP_LAYERS = ["model.processor.gradient_checkpointing=none"]
KEEP_MAPPERS = ["model.encoder.gradient_checkpointing=none", "model.decoder.gradient_checkpointing=none"]

OWN: dict[str, dict[str, list[str]]] = {
    "o96": {
        "as shipped": [],
        "triton": TRITON,
        "triton+blocks": BLOCKS,
        "h200": ["system=h200"],
        "h200 components": ["system=h200", "model/compile=components"],
    },
    "n320": {
        "as shipped": [],
        "triton": TRITON,
        "triton+blocks": BLOCKS,
        "triton+blocks kept": [*BLOCKS, *KEEP_LAYERS, *KEEP_MAPPERS],
        "h200": ["system=h200"],
        "h200 kept": ["system=h200", *KEEP_LAYERS, *KEEP_MAPPERS],
        "h200 components": ["system=h200", "model/compile=components"],
        "h200 components kept": ["system=h200", "model/compile=components", *KEEP_LAYERS, *KEEP_MAPPERS],
    },
    "processor": {
        "as shipped": [],
        "as shipped kept": KEEP_LAYERS,
        "triton kept": [*TRITON, *KEEP_LAYERS],
        "triton+blocks": BLOCKS,
        "triton+blocks kept": [*BLOCKS, *KEEP_LAYERS],
    },
    "quick": {
        "as shipped": [],
        "pyg": ["model.layer_kernels.GraphAttention={_target_: etesian.kernels.pyg.PygGraphAttention}"],
    },
}  # fmt: skip
"""This package's variants of each work: name to overrides. One that does not compose stops the script."""

PEER = {
    "peer": PeerOptions(),
    "peer recomputed": PeerOptions(checkpointing=True),
    "peer compiled": PeerOptions(compiler="inductor"),
}
PEERS: dict[str, dict[str, PeerOptions]] = {
    "o96": PEER | {"peer edges": PeerOptions(mappers="edges")},
    "n320": PEER,
    "processor": PEER,
    "quick": {
        "peer": PeerOptions(backend="pyg"),
        "peer recomputed": PeerOptions(backend="pyg", checkpointing=True),
    },
}
"""The peer's variants of each work; the fastest is what this package's are compared with."""

DATES = ("--dates", "12")  # three splits of which each has a sample
SMALL = (
    "system=cpu", "training.precision=32-true", "graph.nodes.hidden.resolution=1", "model.num_channels=16",
    "graph.edges.data2hidden.cutoff_factor=0.8", "model.encoder.num_heads=2", "model.processor.num_heads=2",
    "model.processor.num_layers=2", "model.decoder.num_heads=2",
)  # fmt: skip

WORKS = {
    work.name: work
    for work in (
        Work("o96", "o96", ("--grid", "o96", *DATES)),
        Work("n320", "n320", ("--grid", "n320", *DATES)),
        Work("processor", "n320", (), ("model.processor.num_layers=8", *KEEP_MAPPERS)),
        Work("quick", "o96", ("--grid", "o8", "--prognostic", "3", "--forcing", "10", *DATES), SMALL),
    )
}
"""The experiments: a config, the store it reads, and what is changed of it in all variants."""

TOLERANCES = {"bf16-mixed": (1e-2, 5e-2), "32-true": (1e-4, 1e-3)}
"""Largest relative difference of losses and of norms of gradients, by precision."""


def main() -> int:
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    logging.getLogger("anemoi.models").setLevel(logging.ERROR)  # that `pyg`, where it is asked for, is a fall-back
    try:
        with tempfile.TemporaryDirectory() as folder:
            if options.quick:
                options.stores = Path(folder)
            return run(options, Path(folder) if options.quick else common.cache_dir(), console)
    except UserError as error:
        print(format_error(error), file=sys.stderr)
        return EXIT_CODE


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["o96", "n320"], help="one of the two experiments (default: both)")
    parser.add_argument("--variants", help="names from the tables of this file: triton,peer (default: all)")
    parser.add_argument("--inference", action="store_true", help="forward passes without gradients")
    parser.add_argument("--processor-only", action="store_true", help="the processor by itself, 8 layers, level 6")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--min-time", type=float, default=1.0, help="seconds a model (default: %(default)s)")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of synthetic stores")
    parser.add_argument("--quick", action="store_true", help="tiny models on a CPU; writes only what --output names")
    parser.add_argument("--output", type=Path, help="default: results/training_step.json beside this file")
    options = parser.parse_args()
    if options.inference and options.processor_only:
        parser.error("--inference and --processor-only are measured one after the other")
    if options.only and (options.quick or options.processor_only):
        parser.error("--only chooses between o96 and n320, neither of which --quick and --processor-only measure")
    if options.repeats < 1 or not options.min_time > 0:
        parser.error("--repeats is a whole number from 1, --min-time more than 0")
    if options.output is None and not options.quick:
        options.output = Path(__file__).parent / "results" / "training_step.json"
    return options


def run(options: argparse.Namespace, cache: Path, console: Console) -> int:
    """Measure all parts; print and write after each."""
    start = time.perf_counter()

    def say(text: str) -> None:
        console.print(f"{time.perf_counter() - start:5.0f} s  {text}", style="dim", markup=False)

    try:
        device = get_device("cpu" if options.quick else "cuda:0")
    except UserError as error:
        raise UserError(error.args[0], mend="run it on a GPU, or --quick, which is a test of the benchmark") from error
    content = kept_results(options.output)
    parts = [*plan(options)]
    clock, products = DeviceClock(device), Machine(device, parts[0].base.config.training.precision).products
    ceilings = measure_ceilings(clock, products, products=True)
    assert ceilings.flops_per_second is not None
    console.print(f"{clock.name}: {ceilings.dtype} matrix products {ceilings.flops_per_second / 1e12:.4g} TFLOP/s")
    console.print(step_report.LEGEND, style="dim")
    tuning.keep_in(cache)
    agree = True
    for part in parts:
        found = measure(part, clock, ceilings, options, cache, say)
        content["parts"][part.name] = found
        if options.output is not None:
            write_results(options.output, content)
        step_report.show(part.name, found, console)
        agree &= all(variant["agrees"] is not False for variant in found["variants"])
        gc.collect()  # modules hold themselves through their compiled forward
        clock.release()
    if options.output is not None:
        console.print(f"\nresults: {options.output}", soft_wrap=True)
    return 0 if agree else 1


def kept_results(path: Path | None) -> dict[str, Any]:
    """Return the results that are there, to which the parts measured now are added.

    Raises
    ------
    UserError
        If nothing can be written there, or something else is there.
    """
    if path is None:
        return {"format": step_report.FORMAT, "parts": {}}
    check_writable(path, "--output")
    if not path.exists():
        return {"format": step_report.FORMAT, "parts": {}}
    try:
        content = json.loads(path.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.keys() != {"format", "parts"}:
        raise UserError(f"{path} is there already, and holds no results of this script", where="--output")
    return content


def plan(options: argparse.Namespace) -> Iterator[Part]:
    """Yield the parts, with every variant composed and its kernels resolved.

    Raises
    ------
    UserError
        For a variant that a part does not have, and for one that does not compose.
    """
    if options.processor_only:
        works, kinds = ["processor"], ["processor"]
    else:
        works = [options.only] if options.only else ["o96", "n320"]
        kinds = ["inference"] if options.inference else ["training"]
    if options.quick:
        works, kinds = ["quick"], kinds if options.processor_only or options.inference else list(KINDS)
    for work in works:
        known = [*OWN[work], *PEERS[work]]
        names = known if options.variants is None else options.variants.split(",")
        if unknown := [name for name in names if name not in known]:
            raise UserError(
                f"{work} has no variant {unknown[0]!r}", where="--variants", allowed=", ".join(known),
                mend=did_you_mean(unknown[0], known),
            )  # fmt: skip
        store = options.stores / f"{work}.zarr"
        base = compose_variant(WORKS[work], [], store)
        own = {name: compose_variant(WORKS[work], overrides, store) for name, overrides in OWN[work].items()
               if name in names}  # fmt: skip
        for name, variant in own.items():
            check_comparable(name, variant.config, base.config)
        peers = {name: how for name, how in PEERS[work].items() if name in names}
        for kind in kinds:
            name = work if kind in (work, "training") else f"{work} {kind}"
            yield Part(name, WORKS[work], kind, base, own, peers)


def measure(
    part: Part, clock: DeviceClock, ceilings: Ceilings, options: argparse.Namespace, cache: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Time the variants of a part, and return what was found in plain values."""
    if part.kind == "processor":
        makers, about = processor_makers(part)
    else:
        makers, about = model_makers(part, options.stores, cache, clock.device, say)
    say(f"{part.name}: graph and data are there")
    repeats, seconds = (2, 1e-3) if options.quick else (options.repeats, options.min_time)
    results, memory = time_models(
        makers, clock, samples=about["samples"], repeats=repeats, min_seconds=seconds, say=say
    )
    variants = [step_report.entry(result, about["flops"], ceilings, own=result.name in part.own) for result in results]
    for variant in variants:
        if variant["own"]:
            chosen = part.own[variant["name"]]
            variant["how"] = {"overrides": chosen.overrides, "kernels": kernels_json(chosen.kernels.records)}
        else:
            variant["how"] = asdict(part.peers[variant["name"]])
    step_report.compare(variants, TOLERANCES[part.base.config.training.precision])
    return {
        "environment": step_report.environment_with_peer(),
        "settings": {
            "kind": part.kind, "config": part.work.config, "quick": options.quick, "device": clock.device.type,
            "device_name": clock.name, "precision": part.base.config.training.precision, "repeats": repeats,
            "min_seconds": seconds,
        },
        "measured_on_the_device": asdict(ceilings),
        "work": about,
        "memory": memory,
        "variants": variants,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
