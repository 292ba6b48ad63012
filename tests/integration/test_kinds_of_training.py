"""Precision, losses, clipping, accumulation, checkpointing and the length of a run, from the command line on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from runs import SMALL, assert_same_run, curve, losses, rows, train, weights

from etesian.schema.training import SchedulerSettings
from etesian.training.optimizer import learning_rate_factor
from small_stores import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "waves.zarr")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def small(store: Path, run_id: str, *options: str) -> list[str]:
    return [
        *SMALL, f"system.input.dataset={store}", f"training.run_id={run_id}", "diagnostics.scores.enabled=false",
        *options,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("32-true", 1e-6), ("bf16-mixed", 1e-2)],
)
def test_precisions_of_a_cpu_train(store: Path, folder: Path, precision: str, tolerance: float):
    assert train(*small(store, "exact", "training.precision=64-true")) == 0
    assert train(*small(store, "other", f"training.precision={precision}")) == 0
    other = curve(folder / "other")
    assert other[-1] < 0.75 * other[0]
    assert other == pytest.approx(curve(folder / "exact"), rel=tolerance)
    if precision == "bf16-mixed":
        assert other != pytest.approx(curve(folder / "exact"), rel=1e-6)
    for run_id, kept in (("exact", torch.float64), ("other", torch.float32)):
        dtypes = {weight.dtype for name, weight in weights(folder / run_id).items() if ".model." in name}
        assert kept in dtypes


@pytest.mark.parametrize(
    ("value", "mend"), [("16-mixed", "training.precision=bf16-mixed"), ("32", "did you mean '32-true'?"),
                        ("64", "did you mean '64-true'?")],
)  # fmt: skip
def test_other_precisions_are_refused(store: Path, folder: Path, value: str, mend: str, capsys):
    assert train(*small(store, "refused", f"training.precision={value}")) == 2
    said = capsys.readouterr().err
    assert "training.precision" in said
    assert mend in said
    assert not folder.exists()


def test_gradient_checkpointing_changes_no_bit(store: Path, folder: Path):
    assert train(*small(store, "plain")) == 0
    for component in ("encoder", "processor", "decoder"):
        assert train(*small(store, component, f"model.{component}.gradient_checkpointing=true")) == 0
        assert_same_run(folder / "plain", folder / component)


def test_accumulated_batches_are_one_larger_batch(store: Path, folder: Path):
    options = ["training.precision=64-true", "dataloader.limit_batches.training=8"]
    assert train(*small(store, "large", "dataloader.batch_size.training=6", "training.max_steps=5", *options[:1])) == 0
    assert train(*small(store, "small", "dataloader.batch_size.training=3", "training.max_steps=5",
                        "training.accum_grad_batches=2", *options[:1])) == 0  # fmt: skip
    for name, weight in weights(folder / "large").items():
        torch.testing.assert_close(weights(folder / "small")[name], weight, rtol=1e-9, atol=1e-9)


def test_the_last_batches_of_an_epoch_make_a_step_of_their_own(store: Path, folder: Path):
    """Seven batches an epoch, three a step: three steps an epoch."""
    assert train(*small(store, "odd", "training.accum_grad_batches=3")) == 0
    assert torch.load(folder / "odd" / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == 6


def test_the_schedule_that_is_logged(store: Path, folder: Path):
    """Warm-up (t + 1) / (W + 1), then the cosine from lr to lr_min over the rest."""
    options = ["training.optimization.lr=1e-2", "training.optimization.lr_scheduler={warmup_t: 4, lr_min: 1e-4}"]
    assert train(*small(store, "rates", *options)) == 0
    expected = [1e-2 * (t + 1) / 5 for t in range(4)]
    expected += [1e-4 + (1e-2 - 1e-4) * (1 + math.cos(math.pi * (t - 4) / 10)) / 2 for t in range(4, 14)]
    assert curve(folder / "rates", "lr") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["training.max_steps=3"], 3),
        (["training.max_epochs=null", "training.max_steps=9"], 9),
        (["training.max_epochs=1", "training.max_steps=100"], 7),
        (["training.max_epochs=3", "dataloader.limit_batches.training=2"], 6),
    ],
    ids=["steps-first", "steps-alone", "epochs-first", "limited"],
)
def test_the_length_of_a_run(store: Path, folder: Path, options: list[str], steps: int):
    assert train(*small(store, "length", *options)) == 0
    assert sorted(losses(folder / "length")) == list(range(steps))
    rate = learning_rate_factor(SchedulerSettings(warmup_t=2), 1e-3, steps)(steps - 1)
    assert float(rows(folder / "length")[-1]["lr"]) == pytest.approx(1e-3 * rate, rel=1e-6)  # ends with the run


def test_limited_validation_and_test(store: Path, folder: Path, capsys):
    options = ["diagnostics.scores.enabled=true", "dataloader.batch_size={training: 4, validation: 1, test: 1}"]
    assert train(*small(store, "all", *options)) == 0
    assert "over 4 forecasts" in " ".join(capsys.readouterr().out.split())
    options.append("dataloader.limit_batches={training: null, validation: 2, test: 3}")
    assert train(*small(store, "few", *options)) == 0
    assert "over 3 forecasts" in " ".join(capsys.readouterr().out.split())
    assert losses(folder / "few") == losses(folder / "all")
    assert losses(folder / "few", "val_loss") != losses(folder / "all", "val_loss")
