import pickle

import numpy as np
import pytest
import torch
import zarr
from anemoi.datasets import open_dataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from etesian.data.sampler import GlobalBatchSampler
from etesian.data.windows import GridPart, SampleError, WindowDataset, _starts, as_it_is
from etesian.errors import UserError


@pytest.fixture
def opened(make_store):
    return lambda **options: open_dataset(str(make_store(**options)))


def test_a_sample_is_a_run_of_states(opened):
    dataset = opened(dates=12, members=2)
    windows = WindowDataset(dataset, multistep_input=2, rollout=1)
    assert len(windows) == 10
    assert windows.skipped == 0
    sample = windows[4]
    expected = np.moveaxis(dataset[4:7], 1, -1)  # (T, V, E, G) -> (T, E, G, V)
    assert sample["x"].shape == (3, 2, 24, 4)
    assert sample["x"].dtype == torch.float32
    assert sample["x"].permute(0, 3, 1, 2).is_contiguous()  # as the store has it: nothing was copied
    np.testing.assert_array_equal(sample["x"].numpy(), expected)
    assert (sample["index"], sample["weight"]) == (4, 1.0)
    np.testing.assert_array_equal(windows.dates(4), dataset.dates[4:7])


def test_a_stride_takes_every_so_many_dates(opened):
    dataset = opened(dates=12)
    windows = WindowDataset(dataset, 2, 2, step=3)
    assert len(windows) == 12 - 9
    np.testing.assert_array_equal(windows[2]["x"].numpy(), np.moveaxis(dataset[:][[2, 5, 8, 11]], 1, -1))
    np.testing.assert_array_equal(windows.dates(2), dataset.dates[[2, 5, 8, 11]])


def test_a_subset_by_period_is_read_at_its_own_dates(make_store):
    path = str(make_store(dates=40))
    whole = open_dataset(path)
    part = open_dataset(path, start="2000-01-03", end="2000-01-05", frequency="12h")
    windows = WindowDataset(part, 1, 1)
    assert len(windows) == 5
    np.testing.assert_array_equal(windows[1]["x"].numpy(), np.moveaxis(whole[:][[10, 12]], 1, -1))


def test_padding_reads_the_same_window_without_weight(opened):
    windows = WindowDataset(opened(dates=8), 1, 1)
    padding = windows[-1 - 3]
    assert torch.equal(padding["x"], windows[3]["x"])
    assert (padding["index"], padding["weight"]) == (3, 0.0)
    np.testing.assert_array_equal(windows.dates(-4), windows.dates(3))


def test_windows_with_a_missing_date_are_skipped_and_counted(opened):
    windows = WindowDataset(opened(dates=12, missing=[5]), 2, 1)
    assert windows.starts.tolist() == [0, 1, 2, 6, 7, 8, 9]
    assert windows.skipped == 3
    assert all(torch.isfinite(windows[index]["x"]).all() for index in range(len(windows)))


@given(dates=st.integers(1, 30), missing=st.sets(st.integers(0, 29)), length=st.integers(2, 5), step=st.integers(1, 4))
def test_a_window_is_there_just_where_all_its_dates_are(dates, missing, length, step):
    missing = {index for index in missing if index < dates}
    starts, skipped = _starts(dates, missing, length, step)
    candidates = [start for start in range(dates) if start + (length - 1) * step < dates]
    whole = [start for start in candidates if not missing & {start + step * state for state in range(length)}]
    assert starts.tolist() == whole
    assert skipped == len(candidates) - len(whole)


def test_no_window_is_an_error_that_tells_what_one_needs(opened):
    with pytest.raises(UserError, match=r"needs 5 dates in a row .* there are 4 dates, 0 missing") as error:
        WindowDataset(opened(dates=4), 2, 1, step=2, split="validation")
    assert "dataloader.validation.start" in error.value.problems[0].where


@pytest.mark.parametrize(
    ("split", "key"),
    [
        ("training", "task.rollout"),
        ("validation", "task.validation_rollout"),
        ("test", "diagnostics.scores.lead_times"),
    ],
)
def test_without_a_window_the_key_of_the_split_s_length_is_named(opened, split, key):
    with pytest.raises(UserError) as error:
        WindowDataset(opened(dates=5), 2, 6, split=split)
    assert str(error.value.problems[0].mend).endswith(f" or {key}")


def test_a_window_past_the_end_is_an_index_error(opened):
    windows = WindowDataset(opened(dates=6), 1, 1)
    with pytest.raises(IndexError):
        windows[5]
    with pytest.raises(IndexError):
        windows[-6]


def test_a_nan_is_an_error_with_variable_date_and_count(opened):
    windows = WindowDataset(opened(dates=12, nan_at=[(6, "u", 3)]), 1, 1)
    assert torch.isfinite(windows[4]["x"]).all()
    with pytest.raises(UserError, match="'u' holds 3 NaNs at 2000-01-02T12:00:00") as error:
        windows[5]
    assert error.value.problems[0].where == "data.processors.imputer"
    assert "[u]" in error.value.problems[0].mend


def test_an_infinite_value_is_an_error_with_variable_date_and_count(make_store):
    path = make_store(dates=12)
    zarr.open(str(path), mode="a")["data"][6, 1, 0, :2] = np.inf
    with pytest.raises(UserError, match="'u' holds 2 infinite values at 2000-01-02T12:00:00"):
        WindowDataset(open_dataset(str(path)), 1, 1)[5]


def test_a_part_of_the_grid(opened):
    dataset = opened(dates=12, members=2, nan_at=[(6, "u", 3)])
    points = slice(5, 15)
    part = WindowDataset(dataset, 2, 1, part=GridPart(points, checks=False))
    for windows in ([1], [2, 3], [2, -4]):
        x = part.__getitems__(windows)["x"]
        expected = WindowDataset(dataset, 2, 1).__getitems__(windows)["x"][:, :, :, points]
        assert torch.equal(x, expected)
        assert x.permute(0, 1, 4, 2, 3).is_contiguous()
    assert int(torch.isnan(WindowDataset(dataset, 2, 1, part=GridPart(slice(None), checks=False))[5]["x"]).sum()) > 0


def test_one_of_those_that_share_the_grid_looks_for_nans_in_all_of_it(opened):
    windows = WindowDataset(opened(dates=12, nan_at=[(6, "u", 3)]), 1, 1, part=GridPart(slice(20, 24), checks=True))
    with pytest.raises(SampleError, match="'u' holds 3 NaNs"):
        windows[6]


def test_a_nan_in_an_imputed_variable_passes(opened):
    windows = WindowDataset(opened(dates=12, nan_at=[(6, "u", 3)]), 1, 1, imputed_variables=["u"])
    assert int(torch.isnan(windows[6]["x"]).sum()) == 3


def test_a_store_that_cannot_be_read_is_an_error_with_the_dates(make_store):
    path = make_store(dates=12)
    windows = WindowDataset(open_dataset(str(path)), 1, 1)
    chunk = path / "data" / "6.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:40])
    with pytest.raises(UserError, match="2000-01-02T06:00:00 to 2000-01-02T12:00:00 cannot be read"):
        windows[5]


def test_it_pickles(opened):
    windows = WindowDataset(opened(dates=12, missing=[4]), 2, 1)
    copy = pickle.loads(pickle.dumps(windows))
    assert len(copy) == len(windows)
    assert torch.equal(copy[3]["x"], windows[3]["x"])


def read_all(windows, workers, context=None):
    sampler = GlobalBatchSampler(len(windows), 3, 0, 1, 0, shuffle=True, pad=True)
    loader = DataLoader(windows, batch_sampler=sampler, collate_fn=as_it_is, num_workers=workers,
                        multiprocessing_context=context)  # fmt: skip
    assert len(loader) == len(sampler)
    return list(loader)


@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (2, "fork"), (1, "spawn")])
def test_batches_are_the_same_with_any_number_of_workers(opened, workers, context):
    windows = WindowDataset(opened(dates=12), 2, 1)
    alone, together = read_all(windows, 0), read_all(windows, workers, context)
    assert len(alone) == len(together) == 4
    for a, b in zip(alone, together, strict=True):
        assert a["x"].shape == (3, 3, 1, 24, 4)
        assert all(torch.equal(a[key], b[key]) for key in ("x", "index", "weight"))
    assert together[-1]["weight"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_holds_the_states_of_its_windows(opened, size):
    dataset = opened(dates=12, members=2)
    windows = WindowDataset(dataset, 2, 1)
    chosen = [4, -1 - 7][:size]
    batch = windows.__getitems__(chosen)
    fields = np.stack([np.moveaxis(dataset[start : start + 3], 1, -1) for start in (4, 7)[:size]])
    np.testing.assert_array_equal(batch["x"].numpy(), fields)  # [B, T, E, G, V]
    assert (batch["index"].tolist(), batch["weight"].tolist()) == ([4, 7][:size], [1.0, 0.0][:size])
    assert (batch["index"].dtype, batch["weight"].dtype) == (torch.int64, torch.float64)
    assert batch["x"].permute(0, 1, 4, 2, 3).is_contiguous()


def test_a_sample_alone_is_not_copied_into_its_batch(opened, monkeypatch):
    windows = WindowDataset(opened(dates=12), 2, 1)
    read = windows._read(slice(4, 7))
    monkeypatch.setattr(windows, "_read", lambda dates: read)
    assert windows.__getitems__([4])["x"].data_ptr() == read.ctypes.data


@pytest.mark.parametrize(("step", "dates"), [(1, 10), (2, 12)])
def test_windows_of_a_batch_share_what_is_read(opened, monkeypatch, step, dates):
    windows = WindowDataset(opened(dates=20), 2, 1, step=step)
    expected = torch.stack([windows[index]["x"] for index in range(3, 11)])
    seen, read = [], windows._read
    monkeypatch.setattr(windows, "_read", lambda dates: seen.append(dates.start) or read(dates))
    batch = windows.__getitems__(range(3, 11))
    assert torch.equal(batch["x"], expected)
    assert seen == sorted(set(seen), key=seen.index)
    assert sorted(seen) == list(range(3, 3 + dates))


def test_a_mistake_in_a_batch_is_named_like_that_of_a_sample(make_store, opened):
    windows = WindowDataset(opened(dates=12, nan_at=[(6, "u", 3)]), 1, 1)
    with pytest.raises(UserError, match="'u' holds 3 NaNs at 2000-01-02T12:00:00"):
        windows.__getitems__([0, 5])
    path = make_store("damaged.zarr", dates=12)
    windows = WindowDataset(open_dataset(str(path)), 1, 1)
    chunk = path / "data" / "6.0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:40])
    with pytest.raises(UserError, match="training data at 2000-01-02T12:00:00 cannot be read"):
        windows.__getitems__([0, 5])


def test_workers_read_a_zip_file_each_for_itself(make_store, tmp_path):
    path = make_store(dates=40)
    with zarr.ZipStore(str(tmp_path / "dataset.zip"), mode="w") as archive:
        zarr.copy_store(zarr.DirectoryStore(str(path)), archive)
    windows = WindowDataset(open_dataset(str(tmp_path / "dataset.zip")), 2, 1)
    windows[0]
    for a, b in zip(read_all(windows, 0), read_all(windows, 2, "fork"), strict=True):
        assert torch.equal(a["x"], b["x"])


def test_another_process_opens_the_dataset_anew(opened, monkeypatch):
    windows = WindowDataset(opened(dates=12), 2, 1)
    here = windows.dataset
    windows[0]
    assert windows.dataset is here
    monkeypatch.setattr("os.getpid", lambda: -1)
    windows[0]
    there = windows.dataset
    assert there is not here
    windows[1]
    assert windows.dataset is there


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_arrives_whole(opened, workers):
    windows = WindowDataset(opened(dates=12, nan_at=[(6, "u", 3)]), 1, 1)
    with pytest.raises(UserError) as error:
        read_all(windows, workers)
    (problem,) = error.value.problems
    assert problem.what == "variable 'u' holds 3 NaNs at 2000-01-02T12:00:00 (training), and has no imputer"
    assert problem.where == "data.processors.imputer"
    assert problem.allowed is None
    assert problem.mend.startswith("'data.processors.imputer.mean=[u]' or +data.")


def test_a_sample_error_keeps_what_it_is_given():
    error = SampleError("what", where="here", allowed="that", mend="so")
    assert str(error) == "error: what\n  where:   here\n  allowed: that\n  mend:    so"
    assert isinstance(pickle.loads(pickle.dumps(error)), UserError)
