"""One forecast from one date: what is read, what is computed, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from small_model import make_graph

from etesian.data.forcings import computed
from etesian.data.period import Spacing
from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.inference.forecast import Forecast, run_forecast, steps_in
from etesian.inference.forecast_file import as_dataset, check_target, describe, write

HOURS, MONTHS = Spacing(seconds=6 * 3600), Spacing(months=1)
START = np.datetime64("2000-01-01T12", "s")


@pytest.mark.parametrize(
    ("lead_time", "step", "steps"), [("120h", HOURS, 20), ("5d", HOURS, 20), ("6mo", MONTHS, 6), ("1month", MONTHS, 1)]
)
def test_lead_times(lead_time: str, step: Spacing, steps: int) -> None:
    assert steps_in(lead_time, step) == steps


@pytest.mark.parametrize(
    ("lead_time", "step", "message"),
    [
        ("5h", HOURS, "--lead-time 5h is no multiple of the model's step of 6h"),
        ("soon", HOURS, "'soon' is not a duration"),
        ("0h", HOURS, "not a duration"),
        ("120h", MONTHS, "is no number of months, and one step of the model is 1 calendar month"),
        ("0mo", MONTHS, "is no number of months"),
        ("3mo", Spacing(months=2), "no multiple of the model's step of 2 calendar months"),
    ],
)
def test_lead_times_that_are_none(lead_time: str, step: Spacing, message: str) -> None:
    with pytest.raises(UserError, match=message):
        steps_in(lead_time, step)


def test_months_are_those_of_the_calendar() -> None:
    assert MONTHS.after(np.datetime64("2000-01-15"), 13) == np.datetime64("2001-02-15T00:00:00")
    assert HOURS.after(START, -1) == np.datetime64("2000-01-01T06:00:00")


class Persistence(torch.nn.Module):
    """Forecasts the newest t plus each forcing, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.multistep_input = 2
        self.variables = Variables(("t", "insolation", "lsm", "sst"), forcing=("insolation", "lsm", "sst"))
        latlons = torch.rad2deg(make_graph()["data"].x.double())
        metadata = {
            "insolation": {"computed_forcing": True, "constant_in_time": False},
            "lsm": {"constant_in_time": True}, "sst": {"units": "K"}, "t": {"units": "K"},
        }  # fmt: skip
        self.about: dict[str, Any] = {
            "dataset": {"metadata": {"variables_metadata": metadata}, "step": {"months": 0, "seconds": 21600}},
            "coordinates": {"latitudes": latlons[:, 0], "longitudes": latlons[:, 1]},
        }

    def rollout(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        self.x = x
        return x[:, 1 : 1 + steps, ..., :1]


class Store:
    """A dataset of eight dates, variables in another order than the model's."""

    def __init__(self, places: dict[str, torch.Tensor], names: tuple[str, ...] = ("sst", "lsm", "t", "insolation")):
        self.variables = list(names)
        self.latitudes, self.longitudes = (places[name].numpy() for name in ("latitudes", "longitudes"))
        self.dates = np.datetime64("2000-01-01", "s") + np.arange(8) * np.timedelta64(6, "h")
        self.missing: set[int] = set()
        self.data = np.random.default_rng(0).normal(size=(8, len(names), 1, 14)).astype(np.float32)
        self.shape = self.data.shape
        for number, date in enumerate(self.dates):
            if "insolation" in names:
                sun = computed("insolation", date, self.latitudes, self.longitudes)
                self.data[number, self.variables.index("insolation"), 0] = sun

    def __len__(self) -> int:
        return len(self.dates)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.data[index]


@pytest.fixture
def model() -> Persistence:
    return Persistence()


@pytest.fixture
def store(model: Persistence) -> Store:
    return Store(model.about["coordinates"])


def run(model: Any, store: Any, steps: int = 3, start: np.datetime64 = START) -> Forecast:
    return run_forecast(model, store, start, steps, torch.device("cpu"))


def test_each_forcing_comes_from_where_it_should(model: Persistence, store: Store) -> None:
    found = run(model, store)
    x = model.x[0, :, 0].numpy()  # [T, G, V]: 06, 12, 18 and 00 UTC
    assert x.shape == (4, 14, 4)
    data = {name: store.data[:, position, 0] for position, name in enumerate(store.variables)}
    np.testing.assert_array_equal(x[:2, :, 0], data["t"][1:3])
    assert not x[2:, :, 0].any()  # a forecast is not given the truth
    np.testing.assert_allclose(x[:, :, 1], data["insolation"][1:5], atol=1e-6)
    np.testing.assert_array_equal(x[:, :, 2], data["lsm"][[1, 2, 2, 2]])
    np.testing.assert_array_equal(x[:, :, 3], data["sst"][1:5])
    assert list(found.dates) == [np.datetime64(f"2000-01-0{day}T{hour}", "s") for day, hour in
                                 [(1, "18"), (2, "00"), (2, "06")]]  # fmt: skip


def test_what_is_computed_goes_beyond_the_data(model: Persistence, store: Store) -> None:
    del model.about["dataset"]["metadata"]["variables_metadata"]["sst"]
    model.about["dataset"]["metadata"]["variables_metadata"]["sst"] = {"constant_in_time": True}
    run(model, store, steps=40)
    sun = computed("insolation", np.datetime64("2000-01-11T06", "s"), store.latitudes, store.longitudes)
    np.testing.assert_allclose(model.x[0, 40, 0, :, 1].numpy(), sun, atol=1e-6)


def test_what_can_not_be_known(model: Persistence, store: Store) -> None:
    with pytest.raises(UserError, match=r"has no 2000-01-03T00:00:00, which .* forcings: sst, which can't be computed"):
        run(model, store, steps=8)
    with pytest.raises(UserError, match=r"has no 1999-12-31T18:00:00, which the forecast needs for its initial state"):
        run(model, store, start=np.datetime64("2000-01-01", "s"))
    store.missing = {1}
    with pytest.raises(UserError, match=r"has no 2000-01-01T06:00:00"):
        run(model, store)


def test_another_formula_is_refused(model: Persistence, store: Store) -> None:
    store.data[:, store.variables.index("insolation")] += 0.01
    with pytest.raises(
        UserError, match=r"'insolation' of the dataset is 0\.01 apart from what the Anemoi tools compute"
    ):
        run(model, store)


def test_another_grid_or_other_variables(model: Persistence, store: Store) -> None:
    with pytest.raises(UserError, match="the dataset lacks sst, which the model reads"):
        run(model, Store(model.about["coordinates"], ("t", "lsm", "insolation")))
    store.latitudes = store.latitudes[::-1]
    with pytest.raises(UserError, match="are not those of the model, or in another order"):
        run(model, store)
    store.latitudes = store.latitudes[:3]
    with pytest.raises(UserError, match="has 3 grid points, the model 14"):
        run(model, store)


def forecast(members: int = 1) -> Forecast:
    """A forecast on a regular grid of 2 by 3 points."""
    latitudes, longitudes = np.repeat([10.0, -10.0], 3), np.tile([0.0, 120.0, 240.0], 2)
    values = np.arange(2 * members * 6 * 2, dtype=np.float32).reshape(2, members, 6, 2)
    dates = START + np.array([6, 12]) * np.timedelta64(1, "h")
    metadata = {
        "t_850": {"mars": {"param": "t", "levtype": "pl", "levelist": 850}, "units": "K"},
        "tp": {"mars": {"param": "tp"}, "units": "m", "process": "accumulation"},
    }  # fmt: skip
    return Forecast(values, ("t_850", "tp"), START, dates, latitudes, longitudes, metadata)


def test_a_netcdf_file_by_the_conventions(tmp_path: Path) -> None:
    write(as_dataset(forecast(), {"title": "a test"}), tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc", decode_timedelta=False) as found:
        assert found.attrs == {"Conventions": "CF-1.11", "title": "a test"}
        assert dict(found.sizes) == {"time": 2, "latitude": 2, "longitude": 3}
        assert found.t_850.attrs == {"long_name": "t at 850 hPa", "units": "K", "standard_name": "air_temperature"}
        assert found.tp.attrs["cell_methods"] == "time: sum"
        assert found.time.attrs["standard_name"] == "time"
        assert list(found.lead_time.values) == [6.0, 12.0]
        assert found.lead_time.attrs["standard_name"] == "forecast_period"
        assert found.latitude.attrs["units"] == "degrees_north"
        assert found.forecast_reference_time.values == START.astype("datetime64[ns]")
        np.testing.assert_array_equal(found.t_850.values.reshape(2, 6), forecast().values[:, 0, :, 0])
        assert "forecast_reference_time" in found.t_850.encoding["coordinates"]
    assert [file.name for file in tmp_path.iterdir()] == ["out.nc"]


def test_a_zarr_store_holds_the_same(tmp_path: Path) -> None:
    write(as_dataset(forecast(), {"title": "a test"}), tmp_path / "out.zarr")
    write(as_dataset(forecast(), {"title": "again"}), tmp_path / "out.zarr")  # replaced
    root = zarr.open_consolidated(str(tmp_path / "out.zarr"))
    assert root.attrs["title"] == "again"
    assert root["t_850"].attrs["_ARRAY_DIMENSIONS"] == ["time", "latitude", "longitude"]
    stored = xr.Dataset({name: (array.attrs["_ARRAY_DIMENSIONS"], array[...], {
        key: value for key, value in array.attrs.items() if key != "_ARRAY_DIMENSIONS"}) for name, array in
        root.arrays()}, attrs=dict(root.attrs))  # fmt: skip
    write(as_dataset(forecast(), {"title": "again"}), tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc", decode_timedelta=False) as expected:
        xr.testing.assert_equal(xr.decode_cf(stored, decode_timedelta=False), expected)


def test_members_and_points_of_any_grid() -> None:
    whole = forecast(members=2)
    found = as_dataset(whole, {})
    assert found.t_850.dims == ("time", "realization", "latitude", "longitude")
    scattered = Forecast(
        whole.values, whole.variables, START, whole.dates, whole.latitudes + np.arange(6), whole.longitudes, {}
    )
    found = as_dataset(scattered, {})
    assert found.t_850.dims == ("time", "realization", "point")
    assert found.latitude.dims == ("point",)


def test_a_standard_name_needs_its_units() -> None:
    assert "standard_name" not in describe("tp", {"mars": {"param": "tp"}, "units": "mm"})
    assert "units" not in describe("x", {})
    assert describe("2t", {"units": "K"})["long_name"] == "2t at 2 m"


def test_targets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in neither \.nc nor \.zarr"):
        check_target(tmp_path / "out.grib", force=False)
    (tmp_path / "out.nc").touch()
    with pytest.raises(UserError, match="is there already"):
        check_target(tmp_path / "out.nc", force=False)
    check_target(tmp_path / "out.nc", force=True)
    (tmp_path / "out.zarr").mkdir()
    with pytest.raises(UserError, match="is no zarr store, so it is not replaced"):
        check_target(tmp_path / "out.zarr", force=True)
    check_target(tmp_path / "new.zarr", force=False)
