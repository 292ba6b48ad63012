from dataclasses import replace

import numpy as np
import pytest
from anemoi.datasets import open_dataset

from etesian.data.forcings import of_hour, of_place
from etesian.data.grids import named_grid
from etesian.data.synthetic import store as store_module
from etesian.data.synthetic.catalogue import by_name, choose
from etesian.data.synthetic.fields import NOISE
from etesian.data.synthetic.options import SyntheticStore
from etesian.data.synthetic.store import plan_store
from etesian.errors import UserError

SMALL = SyntheticStore(grid="o8", prognostic=12, forcing=12, diagnostic=5, dates=10)


def make(path, options=SMALL):
    return open_dataset(str(plan_store(path, options).write()))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make(tmp_path_factory.mktemp("stores") / "small.zarr")


def values(dataset, name):
    return dataset[:, dataset.variables.index(name)][:, 0].astype(np.float64)  # T G


def test_the_store_is_what_was_asked_for(dataset):
    assert dataset.shape == (10, 29, 1, 544)
    assert dataset.resolution == "o8"
    assert str(dataset.frequency) == "6:00:00"
    assert dataset.dates[1] == np.datetime64("2000-01-01T06")
    assert np.isfinite(dataset[:]).all()


def test_roles_and_units_are_in_the_metadata(dataset):
    kinds = dataset.typed_variables
    forcings = dataset.variables[12:24]
    assert [n for n in dataset.variables if kinds[n].is_computed_forcing or kinds[n].is_constant_in_time] == forcings
    assert forcings[-3:] == ["lsm", "z", "sdor"]
    assert kinds["q_50"].is_pressure_level
    assert kinds["tp"].is_accumulation
    assert dataset.variables_metadata["msl"]["units"] == "Pa"
    assert dataset.variables_metadata["q_100"]["mars"] == {"param": "q", "levtype": "pl", "levelist": 100}


def test_forcings_are_those_of_the_place_and_the_date(dataset):
    here = dataset.latitudes, dataset.longitudes
    expected = of_place(*here) | of_hour(dataset.dates[3].astype("datetime64[s]"), *here)
    for name, field in expected.items():
        np.testing.assert_allclose(values(dataset, name)[3], field, atol=1e-6)


def test_the_sun_is_highest_at_local_noon_and_down_at_midnight():
    longitudes = np.array([0.0, 90.0, 180.0, 270.0])
    found = of_hour(np.datetime64("2000-03-21T12", "s"), np.zeros(4), longitudes)["insolation"]
    np.testing.assert_allclose(found, [1.0, 0.0, 0.0, 0.0], atol=0.04)  # the sun is 8 minutes late


def test_constants_are_constant_and_everything_else_moves(dataset):
    for name, kind in dataset.typed_variables.items():
        steps = np.abs(np.diff(values(dataset, name), axis=0)).max()
        assert (steps == 0.0) == kind.is_constant_in_time, name


def test_fields_are_of_the_size_of_weather_and_within_their_bounds(dataset):
    for field in SMALL.fields():
        found = values(dataset, field.name)
        assert found.min() >= field.low
        assert found.max() <= field.high
        if not np.isfinite([field.low, field.high]).any() and not field.computed:
            assert abs(found.mean() - field.mean) < 0.5 * field.stdev
            assert 0.5 * field.stdev < found.std() < 1.5 * field.stdev


def test_a_step_is_far_more_than_the_noise_and_less_than_the_field(dataset):
    for name in ("10u", "2t", "msl", "skt"):
        field = values(dataset, name)
        share = np.diff(field, axis=0).std() / field.std()
        assert 3 * np.sqrt(2) * NOISE < share < 0.9, name


def test_a_field_depends_on_its_name_and_the_seed_alone(tmp_path):
    alone = make(tmp_path / "alone.zarr", replace(SMALL, variables=("tp", "2t")))
    again = make(tmp_path / "again.zarr", replace(SMALL, variables=("2t", "tp")))
    other = make(tmp_path / "other.zarr", replace(SMALL, variables=("2t", "tp"), seed=1))
    noise = 0.2 * 21.0
    np.testing.assert_allclose(values(alone, "2t"), values(again, "2t"), atol=noise)
    assert np.abs(values(again, "2t") - values(other, "2t")).max() > noise


def test_the_same_options_are_the_same_store(dataset, tmp_path):
    np.testing.assert_array_equal(dataset[:], make(tmp_path / "again.zarr")[:])


def test_statistics_are_those_of_the_fields(dataset):
    data = dataset[:].astype(np.float64)
    np.testing.assert_allclose(dataset.statistics["mean"], data.mean(axis=(0, 2, 3)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dataset.statistics["stdev"], data.std(axis=(0, 2, 3)), rtol=1e-7, atol=1e-12)
    np.testing.assert_array_equal(dataset.statistics["maximum"], data.max(axis=(0, 2, 3)))


def test_there_are_as_many_variables_as_one_asks_for():
    fields = choose(400, 40, 30)
    assert len({field.name for field in fields}) == 470
    assert [field.role for field in fields].count("forcing") == 40
    assert all(field.stdev > 0 for field in fields)


def test_names_that_are_known_have_their_role_and_others_are_prognostic():
    fields = {field.name: field for field in by_name(["cos_latitude", "lsm", "tp", "t_850", "t_9000", "my_field"])}
    assert [field.role for field in fields.values()] == [
        "forcing", "forcing", "diagnostic", "prognostic", "prognostic", "prognostic",
    ]  # fmt: skip
    assert (fields["t_850"].level, fields["t_850"].units) == (850, "K")
    assert fields["t_9000"].level is None


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"prognostic": 0}, ["--prognostic 0 is below 1"]),
        ({"forcing": -1, "diagnostic": -2}, ["--forcing -1", "--diagnostic -2"]),
        ({"variables": ("2t", "tp", "2t")}, ["names 2t twice"]),
        ({"dates": 1}, ["--dates 1 is below 2"]),
        ({"seed": -1, "start": "soon", "frequency": "20m"}, ["negative", "not a date", "whole number of hours"]),
        (
            {"prognostic": 100_000_000, "dates": 1_000_001},
            ["more than 1,000,000 dates", "--prognostic is above 10,000"],
        ),
        ({"prognostic": 9_000, "forcing": 1_000, "diagnostic": 1}, ["come to 10,001 variables"]),
        ({"dates": 10**22}, ["more than 1,000,000 dates"]),
        ({"dates": 1_000_000, "frequency": "366d"}, ["end after the year 9999"]),
        ({"start": "9999-12-31T12", "dates": 3}, ["end after the year 9999"]),
        ({"frequency": "999999999999999h"}, ["more than a year"]),
        ({"frequency": "367d"}, ["more than a year"]),
        ({"frequency": "\N{ARABIC-INDIC DIGIT SIX}h"}, ["whole number of hours"]),
        *(({"start": start}, ["not a date"]) for start in ("now", "today", "NaT", "", "0000", "2000-02-30", "12000")),
        ({"variables": ("",)}, ["'' is no name of a variable"]),
        ({"variables": ("2t 2t", "tp,sf")}, ["'2t 2t' is no name", "'tp,sf' is no name"]),
        ({"variables": tuple(map(str, range(10_001)))}, ["has 10,001 names"]),
        ({"grid": "o\N{ARABIC-INDIC DIGIT THREE}"}, ["no grid"]),
        ({"grid": "regular-0.00001deg"}, ["is finer than"]),
        ({"grid": "hexagonal", "dates": 0, "prognostic": -1}, ["--dates 0", "--prognostic -1", "no grid 'hexagonal'"]),
    ],
)
def test_options_that_make_no_sense_are_refused_all_at_once(tmp_path, changes, messages):
    with pytest.raises(UserError) as error:
        plan_store(tmp_path / "a.zarr", replace(SMALL, **changes))
    found = [problem.what for problem in error.value.problems]
    assert len(found) == len(messages)
    assert all(message in what for message, what in zip(messages, found, strict=True))


def test_a_store_that_is_there_is_kept(tmp_path):
    make(tmp_path / "a.zarr")
    with pytest.raises(UserError, match="--overwrite"):
        plan_store(tmp_path / "a.zarr", SMALL)
    assert plan_store(tmp_path / "a.zarr", replace(SMALL, dates=3), overwrite=True).write().exists()
    assert open_dataset(str(tmp_path / "a.zarr")).shape[0] == 3


def test_a_disk_without_room_is_seen_before_any_work(tmp_path, monkeypatch):
    usage = store_module.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"may take 0\.0 GB.* free"):
        plan_store(tmp_path / "new" / "a.zarr", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_the_points_of_a_field_lie_where_the_store_says(tmp_path):
    """The waves are evaluated row by row; each point has the value of its own coordinates."""
    options = replace(SMALL, variables=("cos_latitude", "2t"), dates=2)
    coarse, fine = (make(tmp_path / f"{n}.zarr", replace(options, grid=n)) for n in ("regular-30deg", "regular-10deg"))
    assert (coarse.field_shape, fine.field_shape) == ((6, 12), (18, 36))
    same = [
        int(np.flatnonzero((fine.latitudes == latitude) & (fine.longitudes == longitude))[0])
        for latitude, longitude in zip(coarse.latitudes, coarse.longitudes, strict=True)
    ]
    np.testing.assert_allclose(values(coarse, "2t"), values(fine, "2t")[:, same], atol=0.2 * 21.0)
    assert named_grid("regular-10deg").name == fine.resolution


def test_the_largest_that_is_taken_ends_with_the_year_9999():
    last = replace(SMALL, start="9999-12-31T12", dates=2).times()[-1]
    assert last == np.datetime64("9999-12-31T18", "s")
    assert replace(SMALL, prognostic=9_999, forcing=0, diagnostic=1).num_variables() == 10_000


@pytest.mark.parametrize("start", ["2000", "2000-01", "2000-01-01", "2000-01-01T00", "2000-01-01 00:00:00"])
def test_forms_of_a_first_date(start):
    assert replace(SMALL, start=start).times()[0] == np.datetime64("2000-01-01", "s")


def test_room_is_looked_for_before_any_name_is_made(tmp_path, monkeypatch):
    usage = store_module.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(SyntheticStore, "fields", lambda self: pytest.fail("names were made"))
    with pytest.raises(UserError, match="fewer --dates or variables"):
        plan_store(tmp_path / "a.zarr", replace(SMALL, prognostic=9_000))


@pytest.mark.parametrize("name", ["t_0850", "t_\N{ARABIC-INDIC DIGIT EIGHT}", "t_0", "t_1101"])
def test_a_name_that_is_no_level_stays_as_it_is(name):
    (field,) = by_name([name])
    assert (field.name, field.level) == (name, None)
