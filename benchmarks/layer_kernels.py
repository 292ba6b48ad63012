"""Layer kernels on a GPU: norms side by side, and whole training steps.

Run: python benchmarks/layer_kernels.py [--output benchmarks/results/layer_kernels.json] [--only NAME]

Each run is a command line of ``anemoi-training kernels bench``; what it writes with ``--output`` is kept under its
name. Runs that are there already and are not asked for with --only stay as they are.
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

RUNS: dict[str, list[str]] = {
    "norms": ["--rows", "40962,542080", "--channels", "1024", "--slots", "LayerNorm", *ON_A_GPU],
}
"""Name to arguments; a run of whole steps has ``--end-to-end`` among them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "layer_kernels.json")
    parser.add_argument("--only", choices=list(RUNS), help="measure one of the runs anew")
    options = parser.parse_args()
    results = json.loads(options.output.read_text()) if options.output.is_file() else {"runs": {}}
    for name in [options.only] if options.only else list(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            if cli.main(["kernels", "bench", "--output", str(file), *RUNS[name]]) != 0:
                return EXIT_CODE
            results["runs"][name] = json.loads(file.read_text())
        write_results(options.output, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
