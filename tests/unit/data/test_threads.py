"""Batches read by threads: those of worker processes, in the same order, with the same errors."""

import threading

import pytest
import torch
from anemoi.datasets import open_dataset
from torch.utils.data import DataLoader

from etesian.data.sampler import GlobalBatchSampler
from etesian.data.threads import ThreadLoader
from etesian.data.windows import WindowDataset, as_it_is
from etesian.errors import UserError


@pytest.fixture
def windows(make_store):
    def make(**options):
        return WindowDataset(open_dataset(str(make_store(**options))), 2, 1)

    return make


def sampler(windows, batch_size=3):
    return GlobalBatchSampler(len(windows), batch_size, 0, 1, seed=0, shuffle=True, pad=True)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("workers", [1, 3])
def test_threads_give_the_batches_of_a_loader_without_workers(windows, batch_size, workers):
    dataset = windows(dates=14, members=2)
    alone = list(DataLoader(dataset, batch_sampler=sampler(dataset, batch_size), collate_fn=as_it_is))
    loader = ThreadLoader(dataset, sampler(dataset, batch_size), workers, 2)
    threaded = list(loader)
    assert len(loader) == len(alone) == len(threaded) == 12 // batch_size
    for a, b in zip(alone, threaded, strict=True):
        assert all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in ("x", "index", "weight"))
        assert a["x"].stride() == b["x"].stride()


def test_the_order_is_that_of_the_epoch_at_the_start(windows):
    dataset = windows(dates=14)
    order = sampler(dataset)
    loader = ThreadLoader(dataset, order, 2, 1)
    batches = iter(loader)
    order.set_epoch(1)
    first = [batch["index"].tolist() for batch in batches]
    order.set_epoch(0)
    assert first == list(iter(order))


def test_it_starts_in_the_middle_of_an_epoch_as_the_sampler_says(windows):
    dataset = windows(dates=14)
    order = sampler(dataset)
    whole = [batch["index"].tolist() for batch in ThreadLoader(dataset, order, 2, 2)]
    order.start_at(2)
    assert [batch["index"].tolist() for batch in ThreadLoader(dataset, order, 2, 2)] == whole[2:]


def test_no_more_is_read_than_was_asked_for(windows):
    dataset = windows(dates=30)
    seen = []
    read = dataset._read
    dataset._read = lambda dates: seen.append(dates) or read(dates)
    batches = iter(ThreadLoader(dataset, sampler(dataset, 1), 2, 2))
    next(batches)
    next(batches)
    batches.close()  # waits for what is being read
    assert 2 <= len(seen) <= 2 + 4
    assert not any(thread.name.startswith("loader") for thread in threading.enumerate())


def test_an_error_comes_with_the_batch_that_holds_it(windows):
    dataset = windows(dates=14, nan_at=[(6, "u", 3)])
    order = GlobalBatchSampler(12, 1, 0, 1, seed=0, shuffle=False, pad=False)
    batches = iter(ThreadLoader(dataset, order, 2, 4))
    assert [next(batches)["index"].item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(UserError, match="'u' holds 3 NaNs at 2000-01-02T12:00:00"):
        next(batches)
    assert not any(thread.name.startswith("loader") for thread in threading.enumerate())


@pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (1, 0)])
def test_without_threads_or_batches_there_is_no_loader(windows, workers, ahead):
    dataset = windows(dates=6)
    with pytest.raises(ValueError, match="num_workers="):
        ThreadLoader(dataset, sampler(dataset), workers, ahead)
