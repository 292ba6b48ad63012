"""Stores that ``anemoi-datasets create`` makes from a recipe and a NetCDF file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from anemoi.datasets import open_dataset

from etesian.commands.dataset import describe_store
from etesian.data.variables import Variables
from etesian.schema.data import DataSettings

pytestmark = pytest.mark.slow

RECIPE = """\
name: near-surface
description: Temperature and wind on a coarse grid.
licence: CC0-1.0
attribution: made for a test
dates:
  start: 2000-01-01T00:00:00
  end: 2000-01-20T18:00:00
  frequency: 6h
build:
  group_by: monthly
input:
  join:
    - netcdf:
        path: {source}
        param: [t2m, u10]
    - forcings:
        template: ${{input.join.0.netcdf}}
        param: [cos_latitude, sin_latitude, cos_longitude, sin_longitude, cos_julian_day, sin_julian_day]
"""
FORCINGS = ["cos_latitude", "sin_latitude", "cos_longitude", "sin_longitude", "cos_julian_day", "sin_julian_day"]


def write_netcdf(path: Path) -> xr.Dataset:
    """Two variables, 80 dates, 9 x 18 points, north to south."""
    dates = np.arange("2000-01-01", "2000-01-21", 6, dtype="datetime64[h]").astype("datetime64[ns]")
    latitudes, longitudes = np.arange(80.0, -81.0, -20.0), np.arange(0.0, 360.0, 20.0)
    generator = np.random.default_rng(0)
    names = {"t2m": "K", "u10": "m s-1"}
    fields = {
        name: (
            ("time", "latitude", "longitude"),
            generator.normal(280.0, 5.0, (len(dates), len(latitudes), len(longitudes))).astype(np.float32),
            {"units": units},
        )
        for name, units in names.items()
    }
    coordinates = {
        "time": dates,
        "latitude": ("latitude", latitudes, {"units": "degrees_north", "standard_name": "latitude"}),
        "longitude": ("longitude", longitudes, {"units": "degrees_east", "standard_name": "longitude"}),
    }
    dataset = xr.Dataset(fields, coordinates)
    dataset.to_netcdf(path)
    return dataset


@pytest.fixture(scope="module")
def created(tmp_path_factory) -> tuple[Path, xr.Dataset]:
    """A store that the tool made, and the file it was made from."""
    folder = tmp_path_factory.mktemp("created")
    source = write_netcdf(folder / "near_surface.nc")
    (folder / "recipe.yaml").write_text(RECIPE.format(source=folder / "near_surface.nc"))
    tool = Path(sys.executable).with_name("anemoi-datasets")
    done = subprocess.run(
        [str(tool), "create", "recipe.yaml", "near_surface.zarr"],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "near_surface.zarr", source


def test_the_store_holds_the_file_and_the_forcings(created):
    path, source = created
    dataset = open_dataset(str(path))
    assert sorted(dataset.variables) == sorted(["t2m", "u10", *FORCINGS])
    assert dataset.shape == (80, 8, 1, 9 * 18)
    position = dataset.variables.index("t2m")
    np.testing.assert_allclose(dataset[:, position][:, 0], source["t2m"].values.reshape(80, -1), rtol=1e-6)


def test_the_forcings_can_be_told_from_its_metadata(created):
    dataset = open_dataset(str(created[0]))
    roles = Variables.from_roles(dataset.variables, DataSettings(forcing="computed"), dataset.variables_metadata)
    assert sorted(roles.forcing) == sorted(FORCINGS)
    assert sorted(roles.prognostic) == ["t2m", "u10"]


def test_it_can_be_described(created):
    facts, variables = describe_store(str(created[0]))
    assert facts["dates"] == "80, 2000-01-01 00:00 to 2000-01-20 18:00"
    assert {entry["name"]: entry["units"] for entry in variables}["t2m"] == "K"


def test_splits_by_fractions_do_not_overlap(created):
    periods = [{"end": "80%"}, {"start": "81%", "end": "90%"}, {"start": "91%"}]
    splits = [open_dataset(str(created[0]), **period).dates for period in periods]
    assert [len(dates) for dates in splits] == [64, 8, 8]
    assert splits[0][-1] < splits[1][0] < splits[1][-1] < splits[2][0]
