import numpy as np
import pytest
import xarray as xr

from etesian.errors import UserError
from etesian.inference.climatology import Climatology
from etesian.inference.climatology_file import KEY, load_climatology, save_climatology

LATITUDES, LONGITUDES = np.array([60.0, 60.0, -60.0, -60.0]), np.array([0.0, 180.0, 0.0, 180.0])


def climatology(kind="monthly"):
    groups = {"monthly": 12, "daily": 366}[kind]
    mean = np.random.default_rng(0).normal(size=(groups, 2, 4)).astype(np.float32)
    mean[0, 0, 0] = np.nan
    covered = np.ones(groups, dtype=bool)
    return Climatology(kind, mean, covered, ("t", "u"), LATITUDES, LONGITUDES, 31, ("1948-01-01", "2005-12-01"))


def load(path, kind="monthly", variables=("t", "u"), latitudes=LATITUDES, longitudes=LONGITUDES, units=None):
    return load_climatology(path, kind, variables, latitudes, longitudes, units)


@pytest.mark.parametrize("kind", ["monthly", "daily"])
def test_what_is_written_is_read_back(tmp_path, kind):
    written = climatology(kind)
    path = tmp_path / "new" / "climatology.nc"
    save_climatology(written, path, {"t": "K"})
    read = load(path, kind, units={"t": "K", "u": "m s-1"})
    np.testing.assert_array_equal(read.mean, written.mean)
    np.testing.assert_array_equal(read.covered, written.covered)
    assert (read.variables, read.window, read.period) == (("t", "u"), 31, written.period)
    assert [entry.name for entry in path.parent.iterdir()] == ["climatology.nc"]
    with xr.open_dataset(path) as dataset:
        assert dataset.attrs["Conventions"].startswith("CF-")
        assert dataset["latitude"].attrs["standard_name"] == "latitude"
        assert dataset["t"].attrs == {"units": "K", "cell_methods": "time: mean"}


def test_a_regular_grid_of_xarray_is_read_in_the_order_of_the_dataset(tmp_path):
    mean = climatology().mean
    grid = mean.reshape(12, 2, 2, 2)
    coordinates = {"month": np.arange(1, 13), "latitude": [60.0, -60.0], "longitude": [-360.0, -180.0]}
    dimensions = ("month", "latitude", "longitude")
    fields = {name: (dimensions, grid[:, position]) for position, name in enumerate("tu")}
    xr.Dataset(fields, coordinates).transpose("longitude", "month", "latitude").to_netcdf(tmp_path / "c.nc")
    np.testing.assert_array_equal(load(tmp_path / "c.nc").mean, mean)


def test_a_file_that_is_not_there_or_not_netcdf(tmp_path):
    with pytest.raises(UserError, match="no file"):
        load(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("no NetCDF")
    with pytest.raises(UserError, match="not a NetCDF file") as caught:
        load(tmp_path / "text.nc")
    assert caught.value.problems[0].where == KEY == "diagnostics.scores.climatology_file"


def test_a_file_of_the_other_kind_says_which_setting_would_fit(tmp_path):
    save_climatology(climatology("daily"), tmp_path / "c.nc")
    with pytest.raises(UserError, match="no dimension 'month'") as caught:
        load(tmp_path / "c.nc")
    assert caught.value.problems[0].mend == "diagnostics.scores.climatology=daily"


def test_all_that_is_wrong_with_the_variables_is_said_at_once(tmp_path):
    save_climatology(climatology(), tmp_path / "c.nc", {"t": "degC"})
    with pytest.raises(UserError) as caught:
        load(tmp_path / "c.nc", variables=("t", "U"), units={"t": "K"})
    assert [problem.what for problem in caught.value.problems] == [
        "the climatology file has t in 'degC', the dataset in 'K'",
        "the climatology file has no variable 'U'",
    ]
    assert caught.value.problems[1].mend == "did you mean 'u'?"


@pytest.mark.parametrize(
    ("latitudes", "message"),
    [(LATITUDES[:3], "4 grid points, the dataset 3"), (LATITUDES[::-1], "other grid points")],
)
def test_another_grid_is_refused(tmp_path, latitudes, message):
    save_climatology(climatology(), tmp_path / "c.nc")
    with pytest.raises(UserError, match=message):
        load(tmp_path / "c.nc", latitudes=latitudes, longitudes=LONGITUDES[: len(latitudes)])


def test_a_file_without_positions_or_with_half_a_year_is_refused(tmp_path):
    bare = xr.Dataset({"t": (("month", "cell"), np.zeros((12, 4)))}, {"month": np.arange(1, 13)})
    bare.to_netcdf(tmp_path / "bare.nc")
    with pytest.raises(UserError, match="no latitude and no longitude"):
        load(tmp_path / "bare.nc", variables=("t",))
    bare.isel(month=slice(0, 6)).to_netcdf(tmp_path / "half.nc")
    with pytest.raises(UserError, match="numbers 1 to 12"):
        load(tmp_path / "half.nc", variables=("t",))
    deep = xr.Dataset({"t": (("month", "cell", "level"), np.zeros((12, 4, 2)))}, {"month": np.arange(1, 13)})
    deep.to_netcdf(tmp_path / "deep.nc")
    with pytest.raises(UserError, match="dimensions month, cell, level"):
        load(tmp_path / "deep.nc", variables=("t",))
