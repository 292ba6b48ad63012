"""On two GPUs: a model that they divide is trained as one GPU trains it, and its checkpoints are whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from processes_of_runs import assert_close, assert_close_scores
from runs import curve, run, weights
from sharded_steps import CASES, run_cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs"),
]

CLOSE = {"64-true": 1e-11, "32-true": 1e-4, "bf16-mixed": 1e-2, "16-mixed": 2e-3}
"""Largest relative difference of a loss."""

DEBUG = [
    "--config-name", "debug", "system=gpu", "training.precision=64-true", "diagnostics.plot.enabled=false",
    "system.input.dataset=embedded:ncep-monthly-5deg", "training.deterministic=false",
    "dataloader.limit_batches={training: 6, validation: 2, test: 2}",
]  # fmt: skip
ONE = ["dataloader.batch_size={training: 2, validation: 14, test: 14}"]
TWO = [
    "system.hardware.num_gpus_per_node=2", "dataloader.batch_size={training: 1, validation: 7, test: 7}",
    "training.strategy.kind=fsdp",
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    return run_cases(tmp_path_factory.mktemp("steps"), 2, list(CASES), "cuda")


@pytest.mark.parametrize("name", list(CASES))
def test_a_divided_model_computes_what_a_whole_one_does(found: dict[str, dict[str, float]], name: str) -> None:
    got, precision = found[name], CASES[name].precision
    assert got["losses"] < CLOSE[precision]
    assert 0.5 <= got["held"] < 0.52
    if precision == "64-true":
        assert got["weights"] < 1e-9
    assert got.get("resumed", 0) < CLOSE[precision]


def test_runs_of_two_gpus_and_of_one_go_on_from_each_other(tmp_path: Path) -> None:
    every = ["diagnostics.checkpoint.every_n_train_steps={save_frequency: 4, num_models_saved: -1}"]
    cache, outputs = tmp_path / "cache", tmp_path / "outputs"
    run(tmp_path, cache, *DEBUG, *every, *ONE, "training.run_id=one")
    run(tmp_path, cache, *DEBUG, *every, *TWO, "training.run_id=two")
    assert_close(outputs / "one", outputs / "two")
    assert_close_scores(outputs / "one", outputs / "two")
    after = weights(outputs / "two")
    for name, weight in weights(outputs / "one").items():
        torch.testing.assert_close(after[name], weight, rtol=1e-8, atol=1e-10)
    for before, options in (("two", ONE), ("one", TWO)):
        (kept,) = (outputs / before / "checkpoints").glob("*step_000004.ckpt")
        shutil.copytree(outputs / before, outputs / f"on-{before}")
        shutil.copy(kept, outputs / f"on-{before}" / "checkpoints" / "last.ckpt")
        run(tmp_path, cache, *DEBUG, *every, *options, f"training.run_id=on-{before}")
        assert_close(outputs / "one", outputs / f"on-{before}")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_trains_as_data_parallel_does(tmp_path: Path, precision: str) -> None:
    mixed = [f"training.precision={precision}", "training.max_epochs=1"]
    ddp = [option for option in TWO if "strategy" not in option]
    run(tmp_path, tmp_path / "cache", *DEBUG, *mixed, *ddp, "training.run_id=ddp")
    run(tmp_path, tmp_path / "cache", *DEBUG, *mixed, *TWO, "training.run_id=fsdp")
    curves = [curve(tmp_path / "outputs" / name) for name in ("ddp", "fsdp")]
    assert curves[1] == pytest.approx(curves[0], rel=1e-2)
