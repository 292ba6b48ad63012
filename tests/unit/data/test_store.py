from pathlib import Path

import numpy as np
import pytest
from anemoi.datasets import open_dataset

from etesian.data.store import RunningStatistics, write_store
from etesian.errors import UserError

DATES = np.datetime64("2000-01-01T00", "s") + 6 * 3600 * np.arange(8).astype("timedelta64[s]")
LATITUDES, LONGITUDES = np.array([60.0, 0.0, -60.0]), np.array([0.0, 120.0, 240.0])
METADATA = {"t": {"units": "K"}, "f": {"computed_forcing": True, "constant_in_time": True}}


def states(seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).normal(280.0, 5.0, (8, 2, 3)).astype(np.float32)
    data[:, 1] = 0.5
    return data  # T V G


def write(path: Path, data=None, **changes) -> Path:
    arguments = {
        "dates": DATES,
        "latitudes": LATITUDES,
        "longitudes": LONGITUDES,
        "variables": ["t", "f"],
        "variables_metadata": METADATA,
        "frequency": "6h",
        "attrs": {"resolution": "test", "field_shape": [3]},
    } | changes
    return write_store(path, states() if data is None else data, **arguments)


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


def test_the_store_opens_and_holds_what_was_written(tmp_path):
    dataset = open_dataset(str(write(tmp_path / "a.zarr")))
    assert dataset.shape == (8, 2, 1, 3)
    assert dataset.variables == ["t", "f"]
    assert str(dataset.frequency) == "6:00:00"
    assert dataset.resolution == "test"
    assert (dataset.dates == DATES).all()
    np.testing.assert_array_equal(dataset[:][:, :, 0], states())
    np.testing.assert_array_equal(dataset.latitudes, LATITUDES)
    np.testing.assert_array_equal(dataset.longitudes, LONGITUDES)
    assert dataset.typed_variables["f"].is_computed_forcing
    assert leftovers(tmp_path) == []


def test_a_generator_gives_the_same_store_and_is_read_one_date_at_a_time(tmp_path):
    seen = []
    whole = open_dataset(str(write(tmp_path / "whole.zarr")))
    stream = open_dataset(str(write(tmp_path / "stream.zarr", (state for state in states()), progress=seen.append)))
    np.testing.assert_array_equal(whole[:], stream[:])
    assert seen == list(range(1, 9))


def test_statistics_and_tendencies_are_those_of_the_values(tmp_path):
    dataset = open_dataset(str(write(tmp_path / "a.zarr")))
    data = states().astype(np.float64)
    steps = np.diff(data, axis=0)
    for found, of in ((dataset.statistics, data), (dataset.statistics_tendencies(), steps)):
        np.testing.assert_allclose(found["mean"], of.mean(axis=(0, 2)), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found["stdev"], of.std(axis=(0, 2)), rtol=1e-12)
        np.testing.assert_array_equal(found["maximum"], of.max(axis=(0, 2)))
        np.testing.assert_array_equal(found["minimum"], of.min(axis=(0, 2)))


def test_an_iterator_may_use_its_array_again(tmp_path):
    def reused():
        array = np.empty((2, 3), np.float32)
        for state in states():
            array[:] = state
            yield array

    one, other = (open_dataset(str(write(tmp_path / f"{n}.zarr", d))) for n, d in (("a", reused()), ("b", states())))
    np.testing.assert_array_equal(one[:], other[:])
    for name, values in other.statistics_tendencies().items():
        np.testing.assert_array_equal(one.statistics_tendencies()[name], values)


def test_a_large_mean_costs_the_deviation_no_digits():
    data = 1e9 + np.random.default_rng(1).normal(0.0, 1.0, (50, 1, 100))
    statistics = RunningStatistics(1)
    for state in data:
        statistics.add(state)
    np.testing.assert_allclose(statistics.result()["stdev"], (data - 1e9).std(), rtol=1e-7)


def test_nan_do_not_count(tmp_path):
    data = states()
    data[2:5, 0, 1] = np.nan
    data[3, 0] = np.nan
    statistics = open_dataset(str(write(tmp_path / "a.zarr", data))).statistics
    np.testing.assert_allclose(statistics["mean"][0], np.nanmean(data[:, 0].astype(float)), rtol=1e-12)
    np.testing.assert_allclose(statistics["stdev"][0], np.nanstd(data[:, 0].astype(float)), rtol=1e-12)


def test_a_variable_without_any_value_has_nan_statistics(tmp_path):
    data = states()
    data[:, 0] = np.nan
    statistics = open_dataset(str(write(tmp_path / "a.zarr", data))).statistics
    assert all(np.isnan(statistics[name][0]) for name in ("mean", "stdev", "maximum", "minimum"))


def test_a_missing_date_is_marked_and_out_of_the_statistics(tmp_path):
    data = states()
    data[3] = 1e6
    dataset = open_dataset(str(write(tmp_path / "a.zarr", data, missing_dates=[DATES[3]])))
    assert dataset.missing == {3}
    assert dataset.statistics["maximum"][0] == np.delete(data, 3, axis=0)[:, 0].max()
    steps = np.diff(data.astype(float), axis=0)
    assert dataset.statistics_tendencies()["maximum"][0] == np.delete(steps, [2, 3], axis=0)[:, 0].max()


def test_a_monthly_store_opens_and_names_its_tendencies(tmp_path):
    months = np.arange("2000-01", "2000-09", dtype="datetime64[M]")
    dataset = open_dataset(str(write(tmp_path / "a.zarr", dates=months, frequency="31d")))
    assert str(dataset.dates[-1])[:7] == "2000-08"
    assert dataset.statistics_tendencies()["mean"].shape == (2,)


def test_a_store_is_replaced_only_when_asked(tmp_path):
    path = write(tmp_path / "a.zarr")
    with pytest.raises(UserError, match="exists") as error:
        write(path, states(1))
    assert "--overwrite" in (error.value.problems[0].mend or "")
    np.testing.assert_array_equal(open_dataset(str(path))[:][:, :, 0], states())
    write(path, states(1), overwrite=True)
    np.testing.assert_array_equal(open_dataset(str(path))[:][:, :, 0], states(1))
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_no_store_is_never_replaced(tmp_path):
    (tmp_path / "home.zarr").mkdir()
    (tmp_path / "home.zarr" / "letters.txt").write_text("dear")
    with pytest.raises(UserError, match="not a zarr store"):
        write(tmp_path / "home.zarr", overwrite=True)
    assert (tmp_path / "home.zarr" / "letters.txt").read_text() == "dear"


def test_the_name_must_end_in_zarr(tmp_path):
    with pytest.raises(UserError, match=r"does not end in \.zarr"):
        write(tmp_path / "store")


def test_a_run_that_stops_leaves_nothing_and_keeps_the_old_store(tmp_path):
    def stops():
        yield states()[0]
        raise RuntimeError("power cut")

    path = write(tmp_path / "a.zarr")
    with pytest.raises(RuntimeError, match="power cut"):
        write(path, stops(), overwrite=True)
    assert leftovers(tmp_path) == []
    np.testing.assert_array_equal(open_dataset(str(path))[:][:, :, 0], states())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": states()[:7]}, "only 7 states"),
        ({"data": np.concatenate([states(), states()])}, "more states"),
        ({"data": states()[:, :1]}, "has shape"),
        ({"dates": DATES[::-1]}, "each later"),
        ({"dates": DATES[:1]}, "at least two dates"),
        ({"longitudes": LONGITUDES[:2]}, "one length"),
        ({"variables": ["t", "t"], "variables_metadata": {}}, "named twice"),
        ({"variables_metadata": {"q": {}}}, "does not have"),
        ({"missing_dates": [np.datetime64("1999-01-01")]}, "outside the store's dates"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        write(tmp_path / "a.zarr", **changes)
    assert list(tmp_path.iterdir()) == []
