from dataclasses import replace

import numpy as np
import pytest
from anemoi.datasets import open_dataset

from etesian.data.shallow_water.grids import make_grid
from etesian.data.shallow_water.harmonics import SphericalTransform
from etesian.data.shallow_water.options import Simulation
from etesian.data.shallow_water.simulation import make_store, simulate
from etesian.errors import UserError

SMALL = Simulation(truncation=21, days=8.0, spinup_days=4.0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return open_dataset(str(make_store(tmp_path_factory.mktemp("stores") / "flow.zarr", SMALL)))


def values(dataset, name: str) -> np.ndarray:
    return dataset[:, dataset.variables.index(name)][:, 0].astype(np.float64)  # T G


def test_the_store_is_what_was_asked_for(dataset):
    assert dataset.shape == (32, 11, 1, 32 * 64)
    assert str(dataset.frequency) == "6:00:00"
    assert dataset.dates[0] == np.datetime64("2000-01-01T00")
    assert dataset.resolution == "n16"
    assert dataset.field_shape == (32, 64)
    assert dataset.variables_metadata["height"]["units"] == "m"
    kinds = dataset.typed_variables
    assert [name for name in dataset.variables if kinds[name].is_computed_forcing] == dataset.variables[5:]
    assert [name for name in dataset.variables if kinds[name].is_constant_in_time] == dataset.variables[4:9]
    assert np.isfinite(dataset[:]).all()


def test_the_forcings_are_those_of_the_place_and_the_date(dataset):
    np.testing.assert_allclose(values(dataset, "sin_latitude")[7], np.sin(np.radians(dataset.latitudes)), atol=1e-7)
    np.testing.assert_allclose(values(dataset, "cos_longitude")[7], np.cos(np.radians(dataset.longitudes)), atol=1e-7)
    np.testing.assert_allclose(values(dataset, "cos_julian_day")[7], np.cos(2 * np.pi * 1.75 / 365.25), atol=1e-7)
    np.testing.assert_allclose(values(dataset, "sin_julian_day")[7], np.sin(2 * np.pi * 1.75 / 365.25), atol=1e-7)
    assert (values(dataset, "orography") == values(dataset, "orography")[0]).all()
    assert values(dataset, "orography").max() > 400.0


def test_the_mass_is_conserved_in_the_forced_flow():
    states = [state for _, state in simulate(SMALL)]
    mass = np.array([state.mean_geopotential for state in states])
    assert np.abs(mass / mass[0] - 1.0).max() < 1e-10


def test_the_mass_in_the_store_is_that_of_its_heights(dataset):
    transform = SphericalTransform(21)
    depth = values(dataset, "height") - values(dataset, "orography")
    means = (depth.reshape(-1, 32, 64).mean(axis=2) * transform.weights).sum(axis=1) / 2.0
    np.testing.assert_allclose(means, 4500.0, rtol=1e-6)  # float32


def test_the_flow_moves_in_six_hours_and_stays_active(dataset):
    vorticity = values(dataset, "vorticity")
    eddies = vorticity - vorticity.mean(axis=0)
    steps = np.diff(vorticity, axis=0)
    for half in (slice(0, 16), slice(16, 31)):
        assert 5e-6 < eddies[half].std() < 5e-5
        assert 0.1 < steps[half].std() / eddies.std() < 0.8


def test_the_weather_is_sheared_by_jets_in_both_hemispheres(dataset):
    zonal = values(dataset, "u").mean(axis=0).reshape(32, 64).mean(axis=1)
    latitudes = dataset.latitudes.reshape(32, 64)[:, 0]
    for hemisphere in (latitudes > 0, latitudes < 0):
        fastest = np.abs(latitudes[hemisphere][zonal[hemisphere].argmax()])
        assert zonal[hemisphere].max() > 15.0
        assert 20.0 < fastest < 65.0


def test_the_same_seed_is_the_same_store_and_another_is_not():
    def last(simulation):
        return list(simulate(simulation))[-1][1].vorticity

    short = replace(SMALL, days=1.0, spinup_days=1.0)
    np.testing.assert_array_equal(last(short), last(short))
    assert np.abs(last(short) - last(replace(short, seed=1))).max() > 1e-7


def test_another_frequency_is_the_same_flow_at_fewer_dates():
    short = replace(SMALL, days=1.0, spinup_days=1.0)
    six, twelve = (list(simulate(replace(short, frequency=frequency))) for frequency in ("6h", "12h"))
    assert (len(six), len(twelve)) == (4, 2)
    np.testing.assert_array_equal(six[2][1].vorticity, twelve[1][1].vorticity)


def test_another_grid_is_the_same_flow_at_other_points(tmp_path):
    short = replace(SMALL, days=0.5, spinup_days=0.0)
    stores = {}
    for grid in ("gaussian", "octahedral"):
        path = make_store(tmp_path / f"{grid}.zarr", replace(short, grid=grid))
        stores[grid] = open_dataset(str(path))
    points = make_grid("octahedral", SphericalTransform(21), None).latitudes.size
    assert stores["octahedral"].shape[-1] == points
    # the first point of a row lies at longitude 0 in both
    first = {name: np.flatnonzero(store.longitudes == 0.0) for name, store in stores.items()}
    for variable in ("u", "v", "height"):
        a, b = (values(store, variable)[1][first[name]] for name, store in stores.items())
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_a_store_that_is_there_is_kept_before_any_work(tmp_path):
    (tmp_path / "flow.zarr").mkdir()
    (tmp_path / "flow.zarr" / ".zgroup").write_text("{}")
    with pytest.raises(UserError, match="exists"):
        make_store(tmp_path / "flow.zarr", replace(SMALL, truncation=2000))


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"truncation": 4}, ["too coarse"]),
        ({"seed": -1}, ["negative"]),
        ({"spinup_days": -1.0}, ["negative"]),
        ({"spinup_days": float("nan")}, ["not a number up to 36,525"]),
        ({"spinup_days": float("inf")}, ["not a number up to 36,525"]),
        ({"truncation": 100_000}, ["above 511"]),
        ({"days": 1e300}, ["more than 1,000,000 dates"]),
        ({"days": float("inf")}, ["more than 1,000,000 dates"]),
        ({"days": 3.0, "start": "9999-12-30"}, ["end after the year 9999"]),
        ({"frequency": "999999999999999h"}, ["more than a year"]),
        ({"start": "yesterday"}, ["not a date"]),
        ({"start": "now"}, ["not a date"]),
        ({"days": 0.25}, ["fewer than two dates"]),
        ({"days": float("nan")}, ["fewer than two dates"]),
        ({"frequency": "30m"}, ["whole number of hours"]),
        ({"frequency": "often"}, ["whole number of hours"]),
        ({"frequency": "0h"}, ["whole number of hours"]),
        ({"truncation": 4, "seed": -1, "start": "x"}, ["too coarse", "negative", "not a date"]),
    ],
)
def test_settings_that_make_no_sense_are_refused_all_at_once(changes, messages):
    with pytest.raises(UserError) as error:
        replace(SMALL, **changes).dates()
    found = [problem.what for problem in error.value.problems]
    assert len(found) == len(messages)
    assert all(message in what for message, what in zip(messages, found, strict=True))
