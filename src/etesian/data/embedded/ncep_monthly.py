"""Monthly mean near-surface temperature of the NCEP/NCAR reanalysis as a dataset with forcings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etesian.data.forcings import declination as declination_of
from etesian.data.forcings import of_place, of_season
from etesian.data.store import write_store

TEMPERATURE = "t_sig995"


def build(source: Path, target: Path) -> None:
    """Write the store (zarr format 2, the layout of anemoi-datasets).

    Parameters
    ----------
    source : Path
        The netCDF file: temperature (T, 36, 72), dates (T,) on the first of each month.
    target : Path
        The store, made here; ends in ``.zarr``. Its ``data`` is (T, 8, 1, 2592), a chunk a date.
    """
    import netCDF4  # needed at first use only

    with netCDF4.Dataset(source) as file:
        temperature = file[TEMPERATURE][:].filled(np.nan).astype(np.float32)  # (T, rows, columns), K
        rows, columns = file["latitude"][:].filled(), file["longitude"][:].filled()
        days = file["time"][:].filled()
        if file["time"].units != "days since 1948-01-01 00:00:00":
            raise ValueError(f"unexpected time axis: {file['time'].units}")
        citation = f"{file.source}; {file.references}"
    dates = np.datetime64("1948-01-01", "s") + days * np.timedelta64(86400, "s")
    latitudes, longitudes = (axis.astype(np.float64).ravel() for axis in np.meshgrid(rows, columns, indexing="ij"))
    fields = {TEMPERATURE: temperature.reshape(len(dates), -1)} | forcings(dates, latitudes, longitudes)
    shape = (len(dates), latitudes.size)
    data = np.stack([np.broadcast_to(field, shape).astype(np.float32) for field in fields.values()], axis=1)
    attributes = {"resolution": "5.0", "field_shape": [rows.size, columns.size], "attribution": citation}
    write_store(target, data, dates, latitudes, longitudes, list(fields), _metadata(fields), "31d", attributes)


def forcings(
    dates: NDArray[np.datetime64], latitudes: NDArray[np.float64], longitudes: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return what is known of every date and place without any forecast.

    Parameters
    ----------
    dates : array (T,)
        First instants of months.
    latitudes, longitudes : array (G,)
        Degrees.

    Returns
    -------
    dict
        Arrays that broadcast to (T, G), all without a unit. The day of the year counts from 0 at the start of
        1 January and is turned into an angle with a year of 365.25 days, as the Anemoi ecosystem does.
    """
    return {
        **of_place(latitudes, longitudes),
        **of_season(dates[:, None]),  # (T, 1)
        "insolation": monthly_insolation(dates, latitudes),
    }


def monthly_insolation(dates: NDArray[np.datetime64], latitudes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over each month of the daily mean of :func:`daily_insolation`.

    Parameters
    ----------
    dates : array (T,)
        Any instant of each month.
    latitudes : array (G,)
        Degrees.

    Returns
    -------
    array (T, G)
        Between 0 and 1.
    """
    rows, row_of_point = np.unique(latitudes, return_inverse=True)
    months, month_of_date = np.unique(dates.astype("datetime64[M]"), return_inverse=True)
    first_days = months.astype("datetime64[D]")
    starts = (first_days - months.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    ends = starts + ((months + 1).astype("datetime64[D]") - first_days).astype(int)
    daily = daily_insolation(np.arange(366) + 0.5, rows)  # (366, rows), at noon
    by_month = np.stack([daily[start:end].mean(axis=0) for start, end in zip(starts, ends, strict=True)])
    return by_month[month_of_date][:, row_of_point]


def daily_insolation(
    day_of_year: NDArray[np.floating[Any]], latitudes: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    r"""Return the daily mean of the cosine of the solar zenith angle, night counted as 0.

    With the declination d, the latitude p and the hour angle h of sunset, cos h = -tan p tan d, kept in [-1, 1]:

    .. math:: \frac{1}{\pi} (h \sin p \sin d + \cos p \cos d \sin h)

    (Hartmann, Global Physical Climatology, 2nd ed. 2016, section 2.7).

    Parameters
    ----------
    day_of_year : array (D,)
        Days since the start of 1 January.
    latitudes : array (R,)
        Degrees.

    Returns
    -------
    array (D, R)
        Between 0 and 1; without the distance to the sun, as the ecosystem's ``insolation``.
    """
    declination = declination_of(day_of_year)[:, None]  # (D, 1), radians
    latitude = np.deg2rad(latitudes)[None, :]  # (1, R)
    sunset = np.arccos(np.clip(-np.tan(latitude) * np.tan(declination), -1, 1))  # (D, R), radians
    return (
        sunset * np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.sin(sunset)
    ) / np.pi


def _metadata(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    metadata: dict[str, dict[str, Any]] = {
        name: {"computed_forcing": True, "constant_in_time": "itude" in name, "units": "1"}
        for name in fields
        if name != TEMPERATURE
    }
    metadata["insolation"]["description"] = "mean over the month of the cosine of the solar zenith angle, night as 0"
    metadata[TEMPERATURE] = {
        "computed_forcing": False, "constant_in_time": False, "units": "K",
        "description": "monthly mean air temperature at sigma 0.995",
    }  # fmt: skip
    return metadata
