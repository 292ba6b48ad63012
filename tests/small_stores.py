"""Small datasets for tests, written as anemoi-datasets would write them: ``from small_stores import monthly``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

COMPUTED = {"computed_forcing": True, "constant_in_time": False}
"""Metadata that marks a variable as a computed forcing."""


def six_hourly(count: int, start: str = "2000-01-01T00:00:00") -> np.ndarray:
    """Return `count` dates, 6 hours apart."""
    return np.datetime64(start, "s") + np.arange(count) * np.timedelta64(6, "h")


def monthly(count: int, start: str = "2000-01") -> np.ndarray:
    """Return the first instants of `count` months in a row."""
    return (np.datetime64(start, "M") + np.arange(count)).astype("datetime64[s]")


def lat_lon_grid(rows: int = 4, columns: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return the latitudes and longitudes, flat and in degrees, of a regular grid without the poles."""
    latitudes = 90 - (np.arange(rows) + 0.5) * 180 / rows
    longitudes = np.arange(columns) * 360 / columns
    lats, lons = np.meshgrid(latitudes, longitudes, indexing="ij")
    return lats.ravel(), lons.ravel()


def travelling_waves(dates: int, variables: int, members: int, grid: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return fields (T, V, E, G) that a model can learn: a wave travels eastwards, each variable has its own scale."""
    latitude, longitude = np.deg2rad(grid[0]), np.deg2rad(grid[1])
    time = np.arange(dates)[:, None, None, None]
    variable = np.arange(variables)[None, :, None, None]
    member = np.arange(members)[None, None, :, None]
    wave = np.cos(latitude) * np.sin((1 + variable % 2) * longitude - 0.2 * time + 0.1 * member + variable)
    return (10.0 * (variable + 1) + (variable + 1) * wave).astype(np.float32)


def write_store(
    path: Path,
    *,
    variables: Sequence[str] = ("t", "u", "forcing", "rain"),
    dates: np.ndarray | int = 40,
    grid: tuple[np.ndarray, np.ndarray] | None = None,
    members: int = 1,
    data: np.ndarray | None = None,
    nan_at: Sequence[tuple[int, str, int]] = (),
    missing: Sequence[int] = (),
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    frequency: str | None = "6h",
    leave_out: Sequence[str] = (),
) -> Path:
    """Write a small dataset as anemoi-datasets would and return its path.

    Parameters
    ----------
    path : Path
        Folder to be made, ends in ``.zarr``.
    variables : sequence of str
        Names, V of them.
    dates : array of datetime64, or int
        Dates (T,); a number stands for that many dates 6 hours apart from 2000-01-01.
    grid : (latitudes, longitudes), optional
        Degrees, (G,) each; 4 x 6 points by default.
    members : int
        Size E of the ensemble.
    data : array (T, V, E, G), optional
        The fields; waves that travel eastwards by default.
    nan_at : sequence of (date index, variable, number of points)
        Where NaNs are put: that many points from the first.
    missing : sequence of int
        Indices of the dates declared missing (their fields are filled with NaN).
    metadata : mapping, optional
        ``variables_metadata``.
    frequency : str or None
        Attribute ``frequency``; None leaves it out.
    leave_out : sequence of str
        Arrays and attributes that are not written, to make a broken store.
    """
    names = list(variables)
    if isinstance(dates, int):
        dates = six_hourly(dates)
    latitudes, longitudes = grid or lat_lon_grid()
    if data is None:
        data = travelling_waves(len(dates), len(names), members, (latitudes, longitudes))
    data = np.array(data, dtype=np.float32)
    for date, variable, points in nan_at:
        data[date, names.index(variable), :, :points] = np.nan
    data[list(missing)] = np.nan
    axes = (0, 2, 3)
    arrays = {
        "data": data, "dates": dates.astype("datetime64[s]"), "latitudes": latitudes, "longitudes": longitudes,
        "mean": np.nanmean(data, axis=axes, dtype=np.float64), "stdev": np.nanstd(data, axis=axes, dtype=np.float64),
        "maximum": np.nanmax(data, axis=axes).astype(np.float64),
        "minimum": np.nanmin(data, axis=axes).astype(np.float64),
    }  # fmt: skip
    attributes: dict[str, Any] = {
        "variables": names, "frequency": frequency, "resolution": "test", "layout": "gridded",
        "missing_dates": [str(dates[index]) for index in missing], "variables_metadata": dict(metadata or {}),
    }  # fmt: skip
    if frequency is None:
        del attributes["frequency"]
    root = zarr.open_group(str(path), mode="w")
    for name, values in arrays.items():
        if name not in leave_out:
            chunks = (1, *data.shape[1:]) if name == "data" else values.shape
            root.create_dataset(name, data=values, chunks=chunks)
    root.attrs.update({key: value for key, value in attributes.items() if key not in leave_out})
    return path
