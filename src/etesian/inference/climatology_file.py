"""A climatology as a NetCDF file, with CF names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from etesian.errors import Problem, UserError, did_you_mean
from etesian.files import atomic_path
from etesian.inference.climatology import GROUPS, Climatology, Kind

KEY = "diagnostics.scores.climatology_file"
DIMENSIONS: dict[str, str] = {"monthly": "month", "daily": "dayofyear"}
"""Name of the leading dimension, which is also what xarray's ``groupby("time.month")`` calls it."""

_POSITION_TOLERANCE = 1e-3  # degrees


def save_climatology(climatology: Climatology, path: Path, units: Mapping[str, str] | None = None) -> None:
    """Write a climatology, all or nothing.

    Parameters
    ----------
    climatology : Climatology
        What is written: a variable each, with dimensions (month or dayofyear, cell).
    path : Path
        The file; one that is there is replaced.
    units : mapping of str to str, optional
        Units of the variables.
    """
    units = units or {}
    dimension = DIMENSIONS[climatology.kind]
    groups = np.arange(1, GROUPS[climatology.kind] + 1, dtype=np.int32)
    label = "calendar month" if climatology.kind == "monthly" else "day of the year, 1 January is 1"
    coordinates = {
        dimension: (dimension, groups, {"long_name": label}),
        "latitude": ("cell", climatology.latitudes, {"standard_name": "latitude", "units": "degrees_north"}),
        "longitude": ("cell", climatology.longitudes, {"standard_name": "longitude", "units": "degrees_east"}),
    }
    fields = {
        name: (
            (dimension, "cell"),
            climatology.mean[:, position],
            {"cell_methods": "time: mean", **({"units": units[name]} if name in units else {})},
        )
        for position, name in enumerate(climatology.variables)
    }
    covered = (dimension, climatology.covered.astype(np.int8), {"long_name": "1 where the period has dates"})
    attributes = {
        "Conventions": "CF-1.11",
        "title": f"{climatology.kind} climatology",
        "period_start": climatology.period[0],
        "period_end": climatology.period[1],
        "smoothing_window_days": climatology.window,
    }
    dataset = xr.Dataset({**fields, "covered": covered}, coordinates, attributes)
    with atomic_path(Path(path)) as temporary:
        dataset.to_netcdf(temporary, encoding={name: {"zlib": True, "complevel": 1} for name in fields})


def load_climatology(
    path: Path,
    kind: Kind,
    variables: Sequence[str],
    latitudes: NDArray[np.float64],
    longitudes: NDArray[np.float64],
    units: Mapping[str, str] | None = None,
) -> Climatology:
    """Read a climatology and check that it fits the experiment.

    Parameters
    ----------
    path : Path
        A NetCDF file with a dimension ``month`` (1 to 12) or ``dayofyear`` (1 to 366), then either
        one dimension of cells or ``latitude`` and ``longitude`` of a regular grid, and a variable
        for each name. The points must come in the order of the dataset's.
    kind : {"monthly", "daily"}
        What the experiment asks for.
    variables : sequence of str
        Variables that are scored.
    latitudes, longitudes : ndarray (G,)
        Grid of the experiment, degrees; whole turns of the longitude do not count.
    units : mapping of str to str, optional
        Units of the experiment; a variable whose units differ is refused.

    Raises
    ------
    UserError
        For a file that is missing, can't be read or doesn't fit, with everything that is wrong.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}", where=KEY)
    try:
        dataset = xr.open_dataset(path)
    except (OSError, ValueError) as cause:
        raise UserError(f"{str(path)!r} is not a NetCDF file that can be read: {cause}", where=KEY) from cause
    with dataset:
        problems = [*_group_problems(dataset, path, kind), *_variable_problems(dataset, variables, units or {})]
        if not problems:
            problems = _grid_problems(dataset, variables, DIMENSIONS[kind], latitudes, longitudes)
        if problems:
            raise UserError.collect(problems)
        mean = np.stack([_cells(dataset[name], DIMENSIONS[kind]).values for name in variables], axis=1)  # [K, V, G]
        covered = dataset["covered"].values.astype(bool) if "covered" in dataset else ~np.isnan(mean).all(axis=(1, 2))
        period = (str(dataset.attrs.get("period_start", "")), str(dataset.attrs.get("period_end", "")))
        window = int(dataset.attrs.get("smoothing_window_days", 1))
    return Climatology(
        kind, mean.astype(np.float32), covered, tuple(variables), np.asarray(latitudes, dtype=np.float64),
        np.asarray(longitudes, dtype=np.float64), window, period,
    )  # fmt: skip


def _group_problems(dataset: xr.Dataset, path: Path, kind: Kind) -> list[Problem]:
    dimension, length = DIMENSIONS[kind], GROUPS[kind]
    if dimension not in dataset.sizes:
        return [
            Problem(
                f"{str(path)!r} has no dimension {dimension!r}, which a {kind} climatology needs",
                where=KEY,
                allowed=f"a file with dimension {dimension} (there: {', '.join(map(str, dataset.sizes))})",
                mend=next(
                    (
                        f"diagnostics.scores.climatology={other}"
                        for other, name in DIMENSIONS.items()
                        if name in dataset.sizes
                    ),
                    None,
                ),
            )
        ]
    numbers = dataset[dimension].values if dimension in dataset.coords else np.arange(1, dataset.sizes[dimension] + 1)
    if not np.array_equal(numbers, np.arange(1, length + 1)):
        return [
            Problem(
                f"{dimension!r} of {str(path)!r} does not hold the numbers 1 to {length} in order"
                f" (it has {len(numbers)})",
                where=KEY,
            )
        ]
    return []


def _variable_problems(dataset: xr.Dataset, variables: Sequence[str], units: Mapping[str, str]) -> list[Problem]:
    there = [str(name) for name in dataset.data_vars if name != "covered"]
    problems = []
    for name in variables:
        if name not in there:
            problems.append(
                Problem(
                    f"the climatology file has no variable {name!r}",
                    where=KEY,
                    allowed=f"a file with every variable that is scored (there: {', '.join(there) or 'none'})",
                    mend=did_you_mean(name, there),
                )
            )
        elif name in units and dataset[name].attrs.get("units", units[name]) != units[name]:
            problems.append(
                Problem(
                    f"the climatology file has {name} in {dataset[name].attrs['units']!r}, the dataset in"
                    f" {units[name]!r}",
                    where=KEY,
                )
            )
    return problems


def _grid_problems(
    dataset: xr.Dataset,
    variables: Sequence[str],
    dimension: str,
    latitudes: NDArray[np.float64],
    longitudes: NDArray[np.float64],
) -> list[Problem]:
    problems = []
    for name in variables:
        if dimension not in dataset[name].dims:
            problems.append(Problem(f"{name} of the climatology file has no dimension {dimension!r}", where=KEY))
            continue
        cells = _cells(dataset[name], dimension)
        missing = [coordinate for coordinate in ("latitude", "longitude") if coordinate not in cells.coords]
        if missing:
            problems.append(Problem(f"{name} of the climatology file has no {' and no '.join(missing)}", where=KEY))
        elif cells.sizes["cell"] != len(latitudes):
            problems.append(
                Problem(
                    f"{name} of the climatology file has {cells.sizes['cell']:,} grid points, the dataset"
                    f" {len(latitudes):,}",
                    where=KEY,
                )
            )
        elif not _same_points(cells, latitudes, longitudes):
            problems.append(
                Problem(
                    f"{name} of the climatology file lies on other grid points than the dataset, or in another order",
                    where=KEY,
                )
            )
    return problems


def _cells(field: xr.DataArray, dimension: str) -> xr.DataArray:
    """Return a field as (group, cell), whichever way its grid is written."""
    if {"latitude", "longitude"} <= set(field.dims):
        field = field.stack(cell=("latitude", "longitude"))
    rest = [name for name in field.dims if name != dimension]
    if len(rest) == 1 and rest[0] != "cell":
        field = field.rename({rest[0]: "cell"})
    if "cell" not in field.dims or field.ndim != 2:
        raise UserError(
            f"{field.name} of the climatology file has dimensions {', '.join(map(str, field.dims))}",
            where=KEY,
            allowed=f"({dimension}, cell) or ({dimension}, latitude, longitude)",
        )
    return field.transpose(dimension, "cell")


def _same_points(cells: xr.DataArray, latitudes: Any, longitudes: Any) -> bool:
    turn = (cells["longitude"].values - np.asarray(longitudes) + 180.0) % 360.0 - 180.0
    north = cells["latitude"].values - np.asarray(latitudes)
    return bool((np.abs(turn) < _POSITION_TOLERANCE).all() and (np.abs(north) < _POSITION_TOLERANCE).all())
