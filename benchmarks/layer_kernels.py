"""Layer kernels on a GPU: norms side by side, and whole training steps.

Run: python benchmarks/layer_kernels.py [--output benchmarks/results/layer_kernels.json] [--only NAME] [--stores DIR]

Each run is a command line of ``anemoi-training kernels bench``; what it writes with ``--output`` is kept under its
name. With --only the other runs stay as they were measured. Whole steps need a store: synthetic ones are made in DIR,
3 GB in all, where they are not there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from etesian import cli
from etesian.errors import EXIT_CODE
from etesian.kernels.bench.results import write_results

ON_A_GPU = ["system.hardware.accelerator=cuda", "training.precision=bf16-mixed"]

STEPS = ["--end-to-end", "--repeats", "9", "--min-time", "6", *ON_A_GPU]
SHORT_STORE = [
    "dataloader.training.end=50%", "dataloader.validation.start=51%", "dataloader.validation.end=75%",
    "dataloader.test.start=76%", "diagnostics.scores.enabled=false", "dataloader.num_workers.training=0",
]  # fmt: skip
"""A split of the few dates of a store that is only there to be timed."""

RUNS: dict[str, list[str]] = {
    "norms": ["--rows", "40962,542080", "--channels", "1024", "--slots", "LayerNorm", *ON_A_GPU],
    "transformer_o96": [
        "--config-name", "o96", "--presets", "torch,rmsnorm,liger,liger_layernorm,compiled_rmsnorm,torch+norms",
        "model=transformer", "model.processor.num_layers=16", *STEPS, *SHORT_STORE,
    ],
    "graphtransformer_n320": [
        "--config-name", "n320", "--presets", "torch,rmsnorm,liger,compiled_rmsnorm,torch+norms", *STEPS, *SHORT_STORE,
    ],
    "attention": ["--config-name", "o96", "--slots", "Attention", "model=transformer", *ON_A_GPU, *SHORT_STORE],
}  # fmt: skip
"""Name to arguments."""

GRIDS = {"transformer_o96": "o96", "graphtransformer_n320": "n320", "attention": "o96"}
"""Grid of the store that a run reads."""

DATES = 12
"""Dates of a store: three splits of which each has a sample."""


def make_store(grid: str, folder: Path) -> Path:
    """Return a synthetic store of a grid, made if it is not there."""
    store = folder / f"{grid}.zarr"
    if not store.exists():
        assert cli.main(["dataset", "make", "synthetic", str(store), "--grid", grid, "--dates", str(DATES)]) == 0
    return store


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "layer_kernels.json")
    parser.add_argument("--only", choices=list(RUNS), help="measure one of the runs anew")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of synthetic stores")
    options = parser.parse_args()
    results = json.loads(options.output.read_text()) if options.output.is_file() else {"runs": {}}
    for name in [options.only] if options.only else list(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            arguments = list(RUNS[name])
            if name in GRIDS:
                arguments.append(f"system.input.dataset={make_store(GRIDS[name], options.stores)}")
            if cli.main(["kernels", "bench", "--output", str(file), *arguments]) != 0:
                return EXIT_CODE
            results["runs"][name] = json.loads(file.read_text())
        write_results(options.output, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
