"""A forecast as NetCDF or zarr, by the Climate and Forecast conventions."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from etesian.errors import UserError
from etesian.files import atomic_path
from etesian.inference.forecast import Forecast

SUFFIXES = (".nc", ".zarr")

STANDARD_NAMES = {
    "t": ("air_temperature", "K"), "2t": ("air_temperature", "K"), "2d": ("dew_point_temperature", "K"),
    "u": ("eastward_wind", "m s-1"), "v": ("northward_wind", "m s-1"),
    "10u": ("eastward_wind", "m s-1"), "10v": ("northward_wind", "m s-1"),
    "100u": ("eastward_wind", "m s-1"), "100v": ("northward_wind", "m s-1"),
    "w": ("lagrangian_tendency_of_air_pressure", "Pa s-1"), "q": ("specific_humidity", "kg kg-1"),
    "r": ("relative_humidity", "%"), "z": ("geopotential", "m2 s-2"), "gh": ("geopotential_height", "m"),
    "msl": ("air_pressure_at_mean_sea_level", "Pa"), "sp": ("surface_air_pressure", "Pa"),
    "skt": ("surface_temperature", "K"), "sst": ("sea_surface_temperature", "K"),
    "tcwv": ("atmosphere_mass_content_of_water_vapor", "kg m-2"),
    "tp": ("lwe_thickness_of_precipitation_amount", "m"), "tcc": ("cloud_area_fraction", "1"),
}  # fmt: skip
"""Standard name by parameter, where the units are these; other units mean another quantity."""

_HEIGHTS = {"2": "2 m", "10": "10 m", "100": "100 m"}


def as_dataset(forecast: Forecast, attributes: Mapping[str, Any]) -> xr.Dataset:
    """Lay a forecast out: ``time``, then ``latitude`` and ``longitude`` of a regular grid, or ``point`` of any other.

    Parameters
    ----------
    forecast : Forecast
        The forecast.
    attributes : mapping
        Global attributes, beside ``Conventions``.
    """
    grid, shape = places(forecast.latitudes, forecast.longitudes)
    hours = (forecast.dates - forecast.start) / np.timedelta64(3600, "s")
    time = {"standard_name": "time", "long_name": "valid time", "axis": "T"}
    reference = {"standard_name": "forecast_reference_time", "long_name": "date of the newest initial state"}
    coordinates: dict[str, Any] = {
        "time": ("time", forecast.dates.astype("datetime64[ns]"), time),
        "lead_time": ("time", hours, {"standard_name": "forecast_period", "long_name": "lead time", "units": "hours"}),
        "forecast_reference_time": ((), forecast.start.astype("datetime64[ns]"), reference),
        **grid,
    }
    axes: tuple[str, ...] = ("time", *shape)
    members = forecast.values.shape[1]
    if members > 1:
        axes = ("time", "realization", *shape)
        coordinates["realization"] = ("realization", np.arange(members), {"standard_name": "realization"})
    sizes = (len(forecast.dates), *([members] if members > 1 else []), *shape.values())
    fields = {
        name: (axes, forecast.values[..., column].reshape(sizes), describe(name, forecast.metadata.get(name, {})))
        for column, name in enumerate(forecast.variables)
    }
    return xr.Dataset(fields, coordinates, {"Conventions": "CF-1.11", **attributes})


def describe(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a variable: units, standard and long name, as far as they are known."""
    mars, units = entry.get("mars", {}), entry.get("units")
    parameter, level = str(mars.get("param", name)), mars.get("levelist")
    long_name = str(entry.get("description", parameter))
    if mars.get("levtype") == "pl" and level is not None:
        long_name += f" at {level} hPa"
    elif parameter in STANDARD_NAMES and (height := _HEIGHTS.get(parameter[:-1])):
        long_name += f" at {height}"
    attributes = {"long_name": long_name}
    if units:
        attributes["units"] = str(units)
    standard, known = STANDARD_NAMES.get(parameter, ("", ""))
    if standard and units == known:
        attributes["standard_name"] = standard
    if entry.get("process") == "accumulation":
        attributes["cell_methods"] = "time: sum"
    return attributes


def check_target(path: Path, *, force: bool) -> None:
    """Check, before the work, that a forecast can be written to a path.

    Raises
    ------
    UserError
        For another suffix, something that is there already, or with `force` something that is no forecast's form.
    """
    where = "--output"
    if path.suffix not in SUFFIXES:
        raise UserError(f"--output {path} ends in neither .nc nor .zarr", where=where,
                        allowed="NAME.nc for NetCDF, NAME.zarr for zarr", mend=f"--output {path.name}.nc")  # fmt: skip
    if not path.exists():
        return
    if not force:
        raise UserError(f"{path} is there already", where=where, mend="another name, or --force to replace it")
    ours = path.is_file() if path.suffix == ".nc" else (path / ".zgroup").is_file()
    if not ours:
        kind = "file" if path.suffix == ".nc" else "zarr store"
        raise UserError(f"{path} is no {kind}, so it is not replaced", where=where, mend="another name")


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write a forecast, whole or not at all; dates in whole seconds since its start."""
    start = dataset["forecast_reference_time"].dt.strftime("%Y-%m-%dT%H:%M:%S").item()
    dates = {"units": f"seconds since {start}", "dtype": "int64"}
    for name, variable in dataset.variables.items():
        is_date = name in ("time", "forecast_reference_time")
        variable.encoding = dates if is_date else {"_FillValue": None}
    if path.suffix == ".nc":
        with atomic_path(path) as temporary:
            dataset.to_netcdf(temporary, engine="netcdf4", format="NETCDF4")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name[:40]}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        _write_zarr(dataset, made)
        if path.exists():
            shutil.rmtree(path)
        os.replace(made, path)


def _write_zarr(dataset: xr.Dataset, path: Path) -> None:
    """Write a store of format 2 as xarray reads it; xarray itself writes with zarr 3 only."""
    variables, attributes = xr.conventions.encode_dataset_coordinates(dataset)
    root = zarr.open_group(str(path), mode="w")
    root.attrs.update(attributes)
    for name, variable in variables.items():
        encoded = xr.conventions.encode_cf_variable(variable, name=str(name))
        array = root.create_dataset(name, data=np.asarray(encoded.values), fill_value=None)
        array.attrs.update({"_ARRAY_DIMENSIONS": list(encoded.dims), **encoded.attrs})
    zarr.consolidate_metadata(str(path))


def places(latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the coordinates of the grid and its dimensions with their sizes."""
    names = {"latitude": (latitudes, "degrees_north", "Y"), "longitude": (longitudes, "degrees_east", "X")}
    about = {name: {"standard_name": name, "long_name": name, "units": units} for name, (_, units, _) in names.items()}
    columns = int(np.argmax(latitudes != latitudes[0])) or latitudes.size
    if latitudes.size % columns == 0 and columns < latitudes.size:
        rows, row = latitudes.reshape(-1, columns), longitudes.reshape(-1, columns)
        if (rows == rows[:, :1]).all() and (row == row[:1]).all():
            axes = {"latitude": rows[:, 0], "longitude": row[0]}
            coordinates = {name: (name, axes[name], about[name] | {"axis": names[name][2]}) for name in axes}
            return coordinates, {name: axis.size for name, axis in axes.items()}
    return {name: ("point", values, about[name]) for name, (values, _, _) in names.items()}, {"point": latitudes.size}
