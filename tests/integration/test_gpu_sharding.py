"""On GPUs: a model that two or more share trains as on one, in every precision, and each holds a part of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import curve, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

TINY = ["--config-name", "debug", "system=gpu", "system.input.dataset=embedded:ncep-monthly-5deg",
        "diagnostics.plot.enabled=false", "diagnostics.scores.lead_times=2"]  # fmt: skip
ONE = ["dataloader.batch_size={training: 2, validation: 4, test: 4}"]
SHARED = [*ONE, "system.hardware.num_gpus_per_node=2", "system.hardware.num_gpus_per_model=2"]
BOTH = ["dataloader.batch_size={training: 1, validation: 2, test: 2}", "system.hardware.num_gpus_per_node=4",
        "system.hardware.num_gpus_per_model=2"]  # fmt: skip
CASES = {
    "64-true": (["training.precision=64-true"], 1e-9),
    "transformer": (["training.precision=64-true", "model=transformer"], 1e-9),
    "checkpointed": (["training.precision=64-true", "model.processor.gradient_checkpointing=full"], 1e-9),
    "compiled": (["training.precision=32-true", "model/compile=blocks"], 1e-3),
    "triton": (["training.precision=bf16-mixed", "model/layer_kernels=triton", "training.deterministic=false"], 3e-2),
    "scaled": (["training.precision=16-mixed"], 3e-2),
}


@pytest.mark.parametrize("case", CASES)
def test_two_that_share_a_model_follow_one(tmp_path: Path, case: str) -> None:
    options, tolerance = CASES[case]
    cache, outputs = tmp_path / "cache", tmp_path / "outputs"
    run(tmp_path, cache, *TINY, *ONE, *options, "training.run_id=one")
    run(tmp_path, cache, *TINY, *SHARED, *options, "training.run_id=shared")
    assert curve(outputs / "shared") == pytest.approx(curve(outputs / "one"), rel=tolerance)
    assert curve(outputs / "shared", "val_loss") == pytest.approx(curve(outputs / "one", "val_loss"), rel=tolerance)
    one, shared = (json.loads((outputs / name / "metrics.json").read_text()) for name in ("one", "shared"))
    assert one.keys() == shared.keys()


@pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four GPUs")
def test_two_models_of_two_follow_one(tmp_path: Path) -> None:
    cache, outputs = tmp_path / "cache", tmp_path / "outputs"
    run(tmp_path, cache, *TINY, *ONE, "training.precision=64-true", "training.run_id=one")
    run(tmp_path, cache, *TINY, *BOTH, "training.precision=64-true", "training.run_id=both")
    assert curve(outputs / "both") == pytest.approx(curve(outputs / "one"), rel=1e-9)


def test_each_of_two_holds_about_half(tmp_path: Path) -> None:
    """The peak of a wide model on a fine mesh, where activations outweigh the parameters."""
    large = ["graph.nodes.hidden.resolution=5", "model.num_channels=256", "model.processor.num_layers=8",
             "training.precision=32-true", "training.deterministic=false"]  # fmt: skip
    peaks = {}
    for name, options in {"one": ONE, "shared": SHARED}.items():
        folder = tmp_path / name
        run(tmp_path, tmp_path / "cache", *TINY, *large, *options, "--steps", "15", "--output", str(folder),
            name="profile")  # fmt: skip
        peaks[name] = json.loads((folder / "profile.json").read_text())["device_peak_bytes"]
    assert peaks["shared"] < 0.7 * peaks["one"]
