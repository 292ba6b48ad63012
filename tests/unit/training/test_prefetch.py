"""Batches that are copied ahead are those of the loader, in its order, and each copy begins a step early."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import SMALL, assert_same_run, train
from torch import Tensor
from torch.utils.data import DataLoader

from etesian.data.sampler import GlobalBatchSampler
from etesian.training import fit
from etesian.training.prefetch import DeviceBatches
from small_stores import write_store


class Noting:
    """Copies in place, and notes when."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.noted: list[str] = []

    def begin(self, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
        name = str(int(tensors[0].flatten()[0]))
        self.noted.append(f"begin {name}")

        def arrived() -> list[Tensor]:
            self.noted.append(f"use {name}")
            return [tensor.clone() for tensor in tensors]

        return arrived


def batches_of(samples: int, copies: Noting, epoch: int = 0) -> DeviceBatches:
    sampler = GlobalBatchSampler(samples, 2, 0, 1, seed=3, shuffle=epoch > 0, pad=False)
    sampler.set_epoch(epoch)
    data = [{"index": torch.tensor(i)} for i in range(samples)]
    return DeviceBatches(DataLoader(data, batch_sampler=sampler), copies)


def test_each_copy_begins_before_the_step_before_it():
    copies = Noting()
    for batch in batches_of(6, copies):
        copies.noted.append(f"step {int(batch['index'][0])}")
    assert copies.noted == ["begin 0", "begin 2", "use 0", "step 0", "begin 4", "use 2", "step 2", "use 4", "step 4"]


def test_one_batch_and_what_is_no_tensor():
    data = [{"index": torch.tensor(i), "name": "x"} for i in range(2)]
    (batch,) = DeviceBatches(DataLoader(data, batch_size=2), Noting())
    assert batch["index"].tolist() == [0, 1]
    assert batch["name"] == ["x", "x"]


def test_the_order_is_settled_when_the_epoch_begins():
    batches = batches_of(8, Noting(), epoch=1)
    expected = [batch["index"].tolist() for batch in batches.loader]
    begun = iter(batches)
    batches.batch_sampler.set_epoch(2)
    assert [batch["index"].tolist() for batch in begun] == expected
    assert [batch["index"].tolist() for batch in batches] != expected
    assert len(batches) == 4


def test_an_epoch_that_starts_in_its_middle():
    batches = batches_of(8, Noting(), epoch=1)
    expected = [batch["index"].tolist() for batch in batches]
    batches.batch_sampler.start_at(2)
    assert [batch["index"].tolist() for batch in batches] == expected[2:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_reads_the_same_batches_and_goes_on_exactly(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The data module of a run, with copies that stay on the CPU, where the config would be refused."""
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "waves.zarr", dates=26)
    common = [*SMALL, f"system.input.dataset={tmp_path / 'waves.zarr'}", "diagnostics.scores.enabled=false",
              "task.multistep_input=1", "dataloader.batch_size.training=2", "diagnostics.enable_progress_bar=false",
              "task.rollout={start: 1, epoch_increment: 1, maximum: 2}",
              f"dataloader.num_workers.training={workers}"]  # fmt: skip
    assert train(*common, "training.run_id=plain") == 0
    original, made = fit.build_datamodule, []

    def ahead(*arguments):
        datamodule = original(*arguments)
        datamodule.copies = Noting()
        made.append(datamodule.copies)
        return datamodule

    monkeypatch.setattr(fit, "build_datamodule", ahead)
    prefetched, plain = tmp_path / "outputs" / "prefetched", tmp_path / "outputs" / "plain"
    kept = "diagnostics.checkpoint.every_n_train_steps={save_frequency: 6, num_models_saved: -1}"
    assert train(*common, kept, "training.run_id=prefetched") == 0
    assert_same_run(plain, prefetched)
    (middle,) = (path for path in (prefetched / "checkpoints").iterdir() if path.stem.endswith("step_000006"))
    shutil.copy(middle, prefetched / "checkpoints" / "last.ckpt")  # in the middle of an epoch of nine batches
    assert train(*common, kept, "training.run_id=prefetched") == 0
    assert_same_run(plain, prefetched)
    assert len(made) == 2
    assert all(copies.noted for copies in made)
