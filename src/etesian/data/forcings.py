"""Forcings that follow from place and date, as the Anemoi tools name and define them."""

from __future__ import annotations

from typing import Any

import numpy as np
from earthkit.meteo.solar.array import cos_solar_zenith_angle
from numpy.typing import NDArray

Coordinates = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]

DAYS_PER_YEAR = 365.25

OF_PLACE = ("cos_latitude", "sin_latitude", "cos_longitude", "sin_longitude")
OF_SEASON = ("cos_julian_day", "sin_julian_day")
OF_HOUR = ("cos_local_time", "sin_local_time", "insolation")


def of_place(latitudes: Coordinates, longitudes: Coordinates) -> dict[str, Floats]:
    """Return :data:`OF_PLACE`, (G,) each, of coordinates in degrees (G,)."""
    latitude, longitude = np.deg2rad(latitudes), np.deg2rad(longitudes)
    values = (np.cos(latitude), np.sin(latitude), np.cos(longitude), np.sin(longitude))
    return dict(zip(OF_PLACE, values, strict=True))


def of_season(dates: NDArray[np.datetime64]) -> dict[str, Floats]:
    """Return :data:`OF_SEASON` of dates of any shape, in that shape."""
    angle = year_angle(day_of_year(dates))
    return dict(zip(OF_SEASON, (np.cos(angle), np.sin(angle)), strict=True))


def of_hour(date: np.datetime64, latitudes: Coordinates, longitudes: Coordinates) -> dict[str, Floats]:
    """Return :data:`OF_HOUR` at one date, (G,) each: the local solar time, and the cosine of the zenith angle.

    ``insolation`` is that of earthkit-meteo, as anemoi-datasets and anemoi-inference compute it: with the equation of
    time, without the distance to the sun, 0 at night, at the last full hour.
    """
    day = float(day_of_year(np.asarray(date)))
    local = 2 * np.pi * (day % 1.0) + np.deg2rad(longitudes)  # 0 at local midnight
    zenith = cos_solar_zenith_angle(date.astype("datetime64[s]").item(), latitudes, longitudes)
    return dict(zip(OF_HOUR, (np.cos(local), np.sin(local), zenith), strict=True))


def day_of_year(dates: NDArray[np.datetime64]) -> Floats:
    """Return the days since the start of 1 January, with fractions."""
    return (dates - dates.astype("datetime64[Y]")).astype("timedelta64[s]").astype(np.float64) / 86400


def year_angle(days: Any) -> Any:
    """Turn days of the year into an angle, radians, with a year of 365.25 days."""
    return 2 * np.pi * days / DAYS_PER_YEAR


def declination(days: Any) -> Any:
    """Return the sun's declination, radians, by day of the year.

    The Fourier series of Spencer, 1971: Fourier series representation of the position of the sun, Search 2(5), 172.
    """
    angle = year_angle(days)
    return (
        0.006918
        - 0.399912 * np.cos(angle)
        + 0.070257 * np.sin(angle)
        - 0.006758 * np.cos(2 * angle)
        + 0.000907 * np.sin(2 * angle)
        - 0.002697 * np.cos(3 * angle)
        + 0.001480 * np.sin(3 * angle)
    )


def computed(name: str, date: np.datetime64, latitudes: Coordinates, longitudes: Coordinates) -> Floats:
    """Return one of the forcings of this module at one date, (G,).

    Raises
    ------
    KeyError
        If it is none of them.
    """
    if name in OF_PLACE:
        return of_place(latitudes, longitudes)[name]
    if name in OF_SEASON:
        return np.full(latitudes.shape, of_season(np.asarray(date))[name])
    return of_hour(date, latitudes, longitudes)[name]
