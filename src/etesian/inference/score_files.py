"""Scores, maps of errors and spectra as files: CSV, and NetCDF by the Climate and Forecast conventions."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from etesian.data.period import Spacing
from etesian.files import atomic_file, atomic_path
from etesian.inference.evaluation import FieldErrors
from etesian.inference.forecast_file import describe, places
from etesian.inference.scores import ScoreTable
from etesian.inference.spectra import Spectra

MEASURES = {
    "rmse": "root mean square error", "mae": "mean absolute error", "bias": "mean error (forecast minus truth)",
    "acc": "anomaly correlation coefficient",
}  # fmt: skip
"""What the scores are called in words."""


@dataclass(frozen=True)
class About:
    """What the files tell beside numbers.

    Attributes
    ----------
    step : Spacing
        One lead time.
    metadata : mapping
        ``variables_metadata`` of the data.
    attributes : mapping
        Global attributes.
    """

    step: Spacing
    metadata: Mapping[str, Mapping[str, Any]]
    attributes: Mapping[str, Any]


def write_csv(scores: ScoreTable, path: Path) -> None:
    """Write a row for each variable, lead time and source; what is not a number stays empty."""
    with atomic_file(path, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variable", "units", "lead_time", "source", *MEASURES, "forecasts"])
        for column, variable in enumerate(scores.variables):
            for lead, label in enumerate(scores.lead_times):
                for row, source in enumerate(scores.sources):
                    values = [float(getattr(scores, name)[row, lead, column]) for name in MEASURES]
                    writer.writerow([
                        variable, scores.units.get(variable, ""), label, source,
                        *("" if np.isnan(value) else repr(value) for value in values), scores.samples[lead, column],
                    ])  # fmt: skip


def write_scores(scores: ScoreTable, about: About, path: Path) -> None:
    """Write ``VARIABLE_MEASURE(source, lead_time)`` for every variable, and how many forecasts each lead time has."""
    fields: dict[str, Any] = {}
    for column, name in enumerate(scores.variables):
        for measure in MEASURES:
            attributes = _attributes(name, measure, about.metadata)
            attributes["ancillary_variables"] = f"{name}_forecasts"
            fields[f"{name}_{measure}"] = (("source", "lead_time"), getattr(scores, measure)[..., column], attributes)
        counted = {"long_name": f"number of forecasts that were scored for {name}", "units": "1"}
        fields[f"{name}_forecasts"] = ("lead_time", scores.samples[:, column].astype(np.int32), counted)
    coordinates = {
        "source": ("source", list(scores.sources), {"long_name": "what forecasts"}),
        "lead_time": lead_times(about.step, range(len(scores.lead_times))),
    }
    _write(xr.Dataset(fields, coordinates, _global(about, "scores", "area: mean over the globe or region")), path)


def write_maps(
    errors: FieldErrors, names: tuple[str, ...], latitudes: NDArray[Any], longitudes: NDArray[Any], about: About,
    path: Path,
) -> None:  # fmt: skip
    """Write ``VARIABLE_bias`` and ``VARIABLE_rmse`` at each grid point, ``(lead_time, latitude, longitude)``."""
    coordinates, shape = places(latitudes, longitudes)
    sizes = (len(errors.leads), *shape.values())
    fields = {
        f"{name}_{measure}": (
            ("lead_time", *shape), values[:, column].reshape(sizes).astype(np.float32),
            _attributes(name, measure, about.metadata),
        )
        for measure, values in (("bias", errors.bias), ("rmse", errors.rmse))
        for column, name in enumerate(names)
    }  # fmt: skip
    coordinates = {"lead_time": lead_times(about.step, errors.leads), **coordinates}
    _write(xr.Dataset(fields, coordinates, _global(about, "errors at each grid point", "time: mean")), path)


def write_spectra(spectra: Spectra, names: tuple[str, ...], about: About, path: Path) -> None:
    """Write ``VARIABLE_power(spectrum, lead_time, wavenumber)``; the sum over wavenumbers is the mean square."""
    mean = spectra.mean
    fields = {}
    for column, name in enumerate(names):
        attributes = {"long_name": f"mean power of {name} at each total wavenumber"}
        if units := about.metadata.get(name, {}).get("units"):
            attributes["units"] = f"{units}2" if units.isalpha() else f"({units})^2"
        fields[f"{name}_power"] = (("spectrum", "lead_time", "wavenumber"), mean[:, :, column], attributes)
    wavenumbers = np.arange(spectra.transform.truncation + 1, dtype=np.int32)
    coordinates = {
        "spectrum": ("spectrum", list(Spectra.NAMES), {"long_name": "field that was analysed"}),
        "lead_time": lead_times(about.step, spectra.leads),
        "wavenumber": ("wavenumber", wavenumbers, {"long_name": "total wavenumber", "units": "1"}),
    }
    how = f"spherical harmonics of rows of equal latitude, {spectra.transform.quadrature}, without interpolation"
    _write(xr.Dataset(fields, coordinates, _global(about, "power spectra", how)), path)


def lead_times(step: Spacing, leads: Any) -> tuple[str, NDArray[Any], dict[str, str]]:
    """Return the coordinate of lead times (from 0: one step): hours, or calendar months, which CF has no unit for."""
    numbers = np.array(list(leads)) + 1
    if step.months:
        return "lead_time", numbers * step.months, {"long_name": "lead time in calendar months", "units": "1"}
    attributes = {"standard_name": "forecast_period", "long_name": "lead time", "units": "hours"}
    return "lead_time", numbers * step.seconds / 3600.0, attributes


def _attributes(name: str, measure: str, metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    known = describe(name, metadata.get(name, {}))
    attributes = {"long_name": f"{MEASURES[measure]} of {known['long_name']}"}
    if measure == "acc":
        return attributes | {"units": "1"}
    if "units" in known:
        attributes["units"] = known["units"]
        if known["units"] in ("K", "degC", "degree_Celsius", "celsius"):
            attributes["units_metadata"] = "temperature: difference"
    return attributes


def _global(about: About, title: str, method: str) -> dict[str, Any]:
    return {"Conventions": "CF-1.11", "title": f"{title} of {about.attributes['run']}", "method": method,
            **about.attributes}  # fmt: skip


def _write(dataset: xr.Dataset, path: Path) -> None:
    for name, variable in dataset.variables.items():
        gaps = name in dataset.data_vars and variable.dtype.kind == "f"
        variable.encoding = {"_FillValue": np.nan if gaps else None}
    with atomic_path(path) as temporary:
        dataset.to_netcdf(temporary, engine="netcdf4", format="NETCDF4")
