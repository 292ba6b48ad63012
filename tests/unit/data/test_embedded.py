import datetime
import hashlib
import multiprocessing
import shutil
import time

import numpy as np
import pytest
from anemoi.datasets import open_dataset
from earthkit.meteo.solar import cos_solar_zenith_angle_integrated

from etesian.data.embedded import ncep_monthly, registry, store_cache
from etesian.errors import UserError

NAME = "embedded:ncep-monthly-5deg"
KEY = "system.input.dataset"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return registry.embedded_store(NAME, tmp_path_factory.mktemp("cache"), KEY)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Return a maker that counts how often it made its folder of two files."""
    calls = []

    def make(folder):
        calls.append(folder)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "0").write_bytes(b"chunk")
        (folder / "attributes").write_text("{}")

    target = tmp_path / "datasets" / "small.zarr"
    return target, lambda fingerprint="f": (store_cache.make_once(target, fingerprint, make), len(calls))[1]


def test_the_store_is_the_monthly_temperature_with_forcings(store):
    dataset = open_dataset(str(store))
    assert dataset.shape == (938, 8, 1, 2592)
    assert dataset.variables[0] == "t_sig995"
    assert str(dataset.dates[0])[:10] == "1948-01-01"
    assert str(dataset.dates[-1])[:10] == "2026-02-01"
    marked = {name for name, about in dataset.variables_metadata.items() if about["computed_forcing"]}
    assert marked == set(dataset.variables[1:])
    assert dataset.variables_metadata["t_sig995"]["units"] == "K"


def test_statistics_are_those_of_the_fields(store):
    dataset = open_dataset(str(store))
    fields = dataset[:].astype(np.float64)
    np.testing.assert_allclose(dataset.statistics["mean"], fields.mean(axis=(0, 2, 3)), atol=1e-9)
    np.testing.assert_allclose(dataset.statistics["stdev"], fields.std(axis=(0, 2, 3)), rtol=1e-9)
    assert np.isfinite(fields).all()
    assert 270 < dataset.statistics["mean"][0] < 290


def test_forcings_are_what_their_names_say(store):
    dataset = open_dataset(str(store))
    july = list(dataset.dates).index(np.datetime64("1950-07-01"))
    fields = dict(zip(dataset.variables, dataset[july][:, 0], strict=True))
    latitude, longitude = np.deg2rad(dataset.latitudes), np.deg2rad(dataset.longitudes)
    np.testing.assert_allclose(fields["sin_latitude"], np.sin(latitude), atol=1e-6)
    np.testing.assert_allclose(fields["cos_longitude"], np.cos(longitude), atol=1e-6)
    np.testing.assert_allclose(fields["cos_julian_day"], np.cos(2 * np.pi * 181 / 365.25), atol=1e-6)
    assert fields["insolation"][dataset.latitudes == 87.5].min() > 0.3
    assert fields["insolation"][dataset.latitudes == -87.5].max() == 0


@pytest.mark.parametrize("day", [0, 100, 200, 300])
def test_daily_insolation_agrees_with_the_integral_over_the_day(day):
    latitudes = np.array([87.5, 62.5, 2.5, -42.5, -87.5])
    begin = datetime.datetime(2001, 1, 1) + datetime.timedelta(days=day)
    reference = cos_solar_zenith_angle_integrated(
        begin, begin + datetime.timedelta(days=1), latitudes, np.zeros(5), intervals_per_hour=2
    )
    ours = ncep_monthly.daily_insolation(np.array([day + 0.5]), latitudes)[0]
    np.testing.assert_allclose(ours, reference, atol=5e-3)  # the reference holds the hour fixed for 1 hour


def test_monthly_insolation_is_the_mean_over_the_days_of_the_month():
    latitudes = np.array([60.0, 0.0])
    days = np.arange(31, 60) + 0.5  # February of a leap year
    expected = ncep_monthly.daily_insolation(days, latitudes).mean(axis=0)
    ours = ncep_monthly.monthly_insolation(np.array(["2000-02-01"], "datetime64[s]"), latitudes)
    np.testing.assert_allclose(ours, expected[None], rtol=1e-12)


def test_the_file_is_the_one_that_its_checksum_names():
    dataset = registry.DATASETS["ncep-monthly-5deg"]
    assert hashlib.sha256(dataset.source.read_bytes()).hexdigest() == dataset.sha256
    assert (dataset.source.parent / "CITATION.txt").read_text().startswith(dataset.source.name)


def test_an_unknown_name_is_an_error_that_lists_the_names(tmp_path):
    with pytest.raises(UserError, match="no embedded dataset 'embedded:ncep-monthly'") as error:
        registry.embedded_store("embedded:ncep-monthly", tmp_path, KEY)
    (problem,) = error.value.problems
    assert problem.where == KEY
    assert problem.allowed == NAME
    assert NAME in problem.mend


def test_a_second_use_makes_nothing(small):
    _, make = small
    assert make() == 1
    assert make() == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda target: (target / "data" / "0").unlink(),
        lambda target: (target / "data" / "0").write_bytes(b"chu"),
        lambda target: (target / store_cache.MARKER).unlink(),
        lambda target: (target / store_cache.MARKER).write_text('{"fing'),
        lambda target: (shutil.rmtree(target), target.mkdir()),
        lambda target: (shutil.rmtree(target), target.write_text("a file in its place")),
    ],
    ids=["chunk lost", "chunk cut", "no marker", "marker cut", "empty folder", "a file"],
)
def test_a_broken_one_is_made_again(small, damage):
    target, make = small
    make()
    damage(target)
    assert make() == 2
    assert (target / "data" / "0").read_bytes() == b"chunk"
    assert make() == 2


def test_one_of_another_fingerprint_is_made_again(small):
    _, make = small
    assert make("old") == 1
    assert make("new") == 2


def test_leftovers_of_a_killed_process_are_removed(small):
    target, make = small
    leftover = target.parent / f".{target.name}.new-abc" / "whole"
    leftover.mkdir(parents=True)
    make()
    assert sorted(path.name for path in target.parent.iterdir()) == [f".{target.name}.lock", target.name]


def test_a_failure_leaves_nothing_in_its_place(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise ZeroDivisionError

    target = tmp_path / "datasets" / "small.zarr"
    with pytest.raises(ZeroDivisionError):
        store_cache.make_once(target, "f", fail)
    assert [path.name for path in target.parent.iterdir()] == [f".{target.name}.lock"]


def test_a_cache_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written into the cache folder") as error:
        registry.embedded_store(NAME, tmp_path / "file", KEY)
    assert "ETESIAN_CACHE" in error.value.problems[0].mend


def _make_slowly(folder):
    folder.mkdir()
    time.sleep(0.2)
    (folder / "pid").write_text(str(multiprocessing.current_process().pid))


def _make_in_process(target):
    store_cache.make_once(target, "f", _make_slowly)
    return (target / "pid").read_text()


def test_processes_that_start_together_make_it_once(tmp_path):
    target = tmp_path / "datasets" / "small.zarr"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        makers = pool.map(_make_in_process, [target] * 4, chunksize=1)
    assert len(set(makers)) == 1
