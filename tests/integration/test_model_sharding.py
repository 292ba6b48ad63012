"""Processes that share a model train what one process trains, leave the same files, and end together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from runs import curve, losses, run
from test_data_parallel import DEBUG, ONE, TWO, alive, assert_close, assert_close_scores, faulty

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = ["dataloader.limit_batches={training: 10, validation: 2, test: 2}", "dataloader.num_workers.training=1",
         "diagnostics.checkpoint.every_n_train_steps={save_frequency: 15, num_models_saved: -1}"]  # fmt: skip
SHARED = ["system.hardware.num_gpus_per_node=2", "system.hardware.num_gpus_per_model=2", *ONE]
BOTH = [*TWO, "system.hardware.num_gpus_per_node=4", "system.hardware.num_gpus_per_model=2"]
"""Two models of two processes each."""


def test_every_topology_trains_the_same(tmp_path: Path):
    """20 steps of one process, of two that share the model, and of two models of two each; then gone on by one."""
    cache, outputs = tmp_path / "cache", tmp_path / "outputs"
    run(tmp_path, cache, *DEBUG, *ONE, *STEPS, "training.run_id=one")
    done = run(tmp_path, cache, *DEBUG, *SHARED, *STEPS, "training.run_id=shared", "diagnostics.plot.enabled=true")
    run(tmp_path, cache, *DEBUG, *BOTH, *STEPS, "training.run_id=both")
    assert len(losses(outputs / "one")) == 20
    for name in ("shared", "both"):
        assert_close(outputs / "one", outputs / name)
        assert_close_scores(outputs / "one", outputs / name)
    assert done.stderr == ""
    assert done.stdout.count("each model is shared by 2 processes, of 1,296 data nodes and 21 hidden nodes each; ") == 1
    assert done.stdout.count("RMSE over the test period") == 1
    assert len(list((outputs / "shared" / "plots").glob("map_*.png"))) == 2
    assert (outputs / "shared" / "checkpoints" / "inference-last.ckpt").is_file()

    (kept,) = (outputs / "shared" / "checkpoints").glob("*step_000015.ckpt")
    shutil.copy(kept, outputs / "shared" / "checkpoints" / "last.ckpt")
    run(tmp_path, cache, *DEBUG, *ONE, *STEPS, "training.run_id=shared")
    assert curve(outputs / "shared") == pytest.approx(curve(outputs / "one"), rel=1e-9)
    assert alive(str(tmp_path)) == []


def test_a_mistake_in_the_data_is_told_once(tmp_path: Path):
    """Both processes read the sample with a NaN; one of them looks for it, in the whole grid."""
    options = [*faulty(tmp_path, 9), "system.hardware.num_gpus_per_model=2"]
    done = run(tmp_path, tmp_path / "cache", *options, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("variable 't' holds 3 NaNs at 2000-01") == 1
    assert "Traceback" not in done.stderr
    assert alive(str(tmp_path)) == []
