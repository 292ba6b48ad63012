"""What a block of the processor keeps for the backward pass, by policy and compilation; on a CPU.

Run: python benchmarks/kept_by_a_block.py [--output benchmarks/results/kept_by_a_block.json]

What counts is the memory that a forward pass of the first block leaves allocated beside its result, as torch's profiler
sees it. Compiled blocks are captured and divided into forward and backward pass as for inductor, which settles what is
kept, and then run as they are: that takes seconds where inductor takes minutes on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etesian.commands.common import cache_dir, check_tree
from etesian.compose import compose
from etesian.kernels.bench.results import write_results
from etesian.kernels.resolve import resolve_kernels
from etesian.training.bench_steps import StepModel, first_batch
from etesian.training.environment import environment
from etesian.training.experiment import check_experiment

KINDS = ("graphtransformer", "transformer")
WAYS = {
    "none": "model/compile=none",
    "blocks": "model.compile=[{module: etesian.model.block.Block, "
    "options: {fullgraph: true, dynamic: false, backend: aot_eager}}]",
}
POLICIES = ("none", "selective", "full")
CONFIG = ["system.input.dataset=embedded:ncep-monthly-5deg", "training.max_steps=4", "model.num_channels=64",
          "graph.nodes.hidden.resolution=3",
          "diagnostics.scores.enabled=false", "diagnostics.plot.enabled=false"]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "kept_by_a_block.json")
    options = parser.parse_args()
    blocks = []
    for kind in KINDS:
        checked = check_experiment(settings_of(kind, "none", "none"), cache_dir(), probe=False)
        graph, batch = checked.load_graph(), first_batch(checked)
        for way in WAYS:
            for policy in POLICIES:
                config = settings_of(kind, way, policy)
                kernels = resolve_kernels(config.model, preset=None, overrides=[])
                experiment = replace(checked, config=config, kernels=kernels)
                kept = kept_numbers(StepModel(experiment, graph, batch, {}))
                print(f"{kind}, compiled {way}, {policy}: {kept:.2f} numbers a node and channel", flush=True)
                blocks.append({"kind": kind, "compile": way, "policy": policy, "numbers": round(kept, 2)})
    results = {
        "environment": environment(sys.argv),
        "settings": {
            "channels": config.model.num_channels, "mlp_hidden_ratio": config.model.processor.mlp_hidden_ratio,
            "qk_norm": config.model.processor.qk_norm, "nodes": graph["hidden"].num_nodes,
            "precision": config.training.precision,
        },
        "blocks": blocks,
    }  # fmt: skip
    write_results(options.output, results)
    return 0


def settings_of(kind: str, way: str, policy: str) -> Any:
    overrides = [f"model={kind}", WAYS[way], f"model.processor.gradient_checkpointing={policy}"]
    return check_tree(compose("debug", None, [*CONFIG, *overrides]))


def kept_numbers(model: StepModel) -> float:
    """Return what the first block of the processor keeps, in numbers for each node and channel."""
    model.step()  # compiles
    block = model.module.forecaster.model.get_submodule("processor.blocks.0")
    forward, kept = block.forward, []

    def measured(*args: Any) -> Tensor:
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            result: Tensor = forward(*args)
        grown = sum(event.self_cpu_memory_usage for event in profile.function_events)
        kept.append((grown - result.untyped_storage().nbytes()) / result.nbytes)
        return result

    block.forward = measured  # type: ignore[method-assign]
    model.step()
    return kept[0]


if __name__ == "__main__":
    raise SystemExit(main())
