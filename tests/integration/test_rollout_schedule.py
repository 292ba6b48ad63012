"""A rollout that grows with the epochs: its windows, its loss, and how it goes on after a stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from runs import SMALL, assert_same_run, curve, rows, train

from small_stores import write_store

GROWING = ["task.rollout={start: 1, epoch_increment: 1, maximum: 3}", "training.max_epochs=4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def small(tmp_path: Path, run_id: str, *options: str) -> list[str]:
    """Options of a run on 19 windows of training for one step, 18 for two, 17 for three."""
    store = tmp_path / "waves.zarr"
    if not store.exists():
        write_store(store, dates=26)
    return [
        *SMALL, *GROWING, f"system.input.dataset={store}", f"training.run_id={run_id}",
        "diagnostics.scores.enabled=false", "task.multistep_input=1", "dataloader.batch_size.training=2", *options,
    ]  # fmt: skip


def test_windows_and_rollout_change_with_the_epoch(tmp_path: Path, folder: Path):
    assert train(*small(tmp_path, "grown")) == 0
    by_epoch = {epoch: [row for row in rows(folder / "grown") if row["epoch"] == str(epoch)] for epoch in range(4)}
    assert [len(by_epoch[epoch]) for epoch in range(4)] == [9, 9, 8, 8]
    assert [{float(row["rollout"]) for row in by_epoch[epoch]} for epoch in range(4)] == [{1.0}, {2.0}, {3.0}, {3.0}]


def test_three_steps_train(tmp_path: Path, folder: Path):
    options = ["task.rollout={start: 3, epoch_increment: 0, maximum: 3}", "task.validation_rollout=2"]
    assert train(*small(tmp_path, "three", *options)) == 0
    first, *_, last = curve(folder / "three", "val_loss")
    assert last < 0.5 * first


@pytest.mark.parametrize(
    ("accumulate", "step", "precision"),
    [(1, 12, "32-true"), (1, 18, "64-true"), (1, 22, "32-true"), (2, 7, "64-true"), (2, 10, "32-true")],
    ids=["second epoch", "end of the second", "third epoch", "two batches a step", "two batches a step, end"],
)  # fmt: skip
def test_a_stop_inside_the_schedule_changes_nothing(
    tmp_path: Path, folder: Path, accumulate: int, step: int, precision: str
):
    """Epochs of 9, 9, 8 and 8 batches."""
    options = [
        f"training.accum_grad_batches={accumulate}",
        f"training.precision={precision}",
        f"diagnostics.checkpoint.every_n_train_steps={{save_frequency: {step}, num_models_saved: -1}}",
    ]
    assert train(*small(tmp_path, "whole", *options)) == 0
    kept = [path for path in (folder / "whole" / "checkpoints").iterdir() if path.stem.endswith(f"step_{step:06d}")]
    assert len(kept) == 1
    shutil.copytree(folder / "whole", folder / "stopped")
    shutil.copy(kept[0], folder / "stopped" / "checkpoints" / "last.ckpt")
    assert train(*small(tmp_path, "stopped", *options)) == 0
    assert_same_run(folder / "whole", folder / "stopped", ("train_loss", "val_loss", "lr", "rollout"))
