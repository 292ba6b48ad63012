"""On a GPU: batches in page-locked memory, and their way to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from anemoi.datasets import open_dataset

from etesian.data.open import Splits
from etesian.schema.dataloader import DataloaderSettings
from etesian.schema.task import TaskSettings
from etesian.training.datamodule import ForecastDataModule

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_batch_goes_to_the_device_as_it_lies_in_memory(
    make_store: Callable[..., Path], kind: str, batch_size: int
) -> None:
    dataset = open_dataset(str(make_store(dates=14, members=2)))
    split, ones = {"dataset_config": {"dataset": "opened above"}}, {"training": 1, "validation": 1, "test": 1}
    settings = DataloaderSettings.model_validate(
        {"num_workers": {"training": 2}, "workers": kind, "batch_size": ones | {"training": batch_size},
         "pin_memory": True, "training": split, "validation": split, "test": split}
    )  # fmt: skip
    splits = Splits(dataset, dataset, dataset)
    module = ForecastDataModule(splits, settings, TaskSettings(), 1, frozenset(), seed=0)
    for batch in module.loader("training", 1, 0, 1, shuffle=True):
        x = batch["x"]
        assert x.is_pinned()
        assert x.permute(0, 1, 4, 2, 3).is_contiguous()
        there = x.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert there.stride() == x.stride()
        assert torch.equal(there.contiguous().cpu(), x.contiguous())
