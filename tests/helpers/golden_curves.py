"""The loss curves kept in ``tests/golden``.

Written anew, after a change that is meant to change them, by::

    OMP_NUM_THREADS=1 PYTHONPATH=src python tests/helpers/golden_curves.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from runs import SMALL, curve, train

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "loss_curves.json"
CASES = {
    "mse": [],
    "mae": ["training.training_loss.kind=mae"],
    "huber": ["training.training_loss.kind=huber", "+training.training_loss.delta=0.1"],
    "accumulated": ["training.accum_grad_batches=2", "training.max_steps=20"],
    "clipped by value": ["training.gradient_clip={val: 0.001, algorithm: value}"],
    "clipped by norm": ["training.gradient_clip={val: 0.01, algorithm: norm}"],
    "constant rate": ["training.optimization.lr_scheduler={kind: constant, warmup_t: 5}"],
}
"""Options of each case, on top of those of `train_case`."""


def train_case(name: str, store: Path, run_id: str) -> dict[str, list[float]]:
    """Train 20 steps in the current folder and return the losses and learning rates."""
    options = [
        *SMALL, f"system.input.dataset={store}", f"training.run_id={run_id}", "diagnostics.scores.enabled=false",
        "training.max_epochs=null", "training.max_steps=20",
    ]  # fmt: skip
    assert train(*options, *CASES[name]) == 0
    return {metric: curve(Path("outputs") / run_id, metric) for metric in ("train_loss", "lr")}


def main() -> None:
    """Write the curves of every case."""
    from small_stores import write_store

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ETESIAN_CACHE"] = str(Path(folder) / "cache")
        os.chdir(folder)
        store = write_store(Path(folder) / "waves.zarr")
        curves = {name: train_case(name, store, name.replace(" ", "-")) for name in CASES}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
