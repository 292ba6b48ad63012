"""A forecast as maps: truth, forecast, its error, and what persistence would have got wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from etesian.inference.score_table import format_value
from etesian.plots import style
from etesian.plots.projection import MapFrame, make_frame

_QUANTILES = (0.005, 0.995)  # of the values that the colours span; the rest is clipped, and the bar shows it

_WIDEST = 2.0  # times the forecast's own range of errors: what persistence has beyond is clipped


@dataclass(frozen=True)
class MapFields:
    """One forecast of one variable.

    Attributes
    ----------
    variable, units, lead_time : str
        For the labels; `units` may be empty.
    valid_date : datetime64
        Date of truth and forecast; one in units of months is written as such.
    latitudes, longitudes, weights : ndarray (G,)
        Grid, degrees, and its area weights.
    truth, forecast, persistence : ndarray (G,)
        Fields in physical units; NaN where there is no value.
    """

    variable: str
    units: str
    lead_time: str
    valid_date: Any
    latitudes: NDArray[Any]
    longitudes: NDArray[Any]
    weights: NDArray[Any]
    truth: NDArray[Any]
    forecast: NDArray[Any]
    persistence: NDArray[Any]

    def __post_init__(self) -> None:
        names = ("longitudes", "weights", "truth", "forecast", "persistence")
        length = np.shape(self.latitudes)
        wrong = [name for name in names if np.shape(getattr(self, name)) != length]
        if len(length) != 1 or wrong:
            raise ValueError(f"a map needs one value for each of {length} grid points: {', '.join(wrong)}")
        if not np.isfinite(self.truth).any():
            raise ValueError(f"the truth of {self.variable} has no value to draw")


def plot_maps(fields: MapFields, path: Path, frame: MapFrame | None = None) -> Path:
    """Draw truth and forecast on one scale, and both errors on another, symmetric about zero.

    Parameters
    ----------
    fields : MapFields
        The forecast.
    path : Path
        The PNG, replaced if it is there.
    frame : MapFrame, optional
        From :func:`make_frame` for the same grid, to save time over many pictures.

    Returns
    -------
    Path
        `path`.
    """
    frame = make_frame(fields.latitudes, fields.longitudes) if frame is None else frame
    truth, forecast, persistence = (
        np.asarray(field, dtype=np.float64) for field in (fields.truth, fields.forecast, fields.persistence)
    )
    errors = (forecast - truth, persistence - truth)
    units = style.pretty_units(fields.units)
    left, right, bottom, top = frame.extent
    panel = float(np.clip(4.8 * (top - bottom) / (right - left) * frame.aspect, 1.8, 6.0))
    with style.figure(11.0, 2 * panel + 1.3) as drawing:
        upper, lower = drawing.subplots(2, 2)
        low, high, field_extend = colour_range(np.concatenate([truth, forecast]))
        limit, error_extend = _error_range(*errors)
        names = ("Truth", "Forecast")
        for axes, values, name in zip(upper, (truth, forecast), names, strict=True):
            picture = draw_field(axes, frame, values, (low, high), style.FIELD_COLOURS)
            axes.set_title(name)
        colour_bar(drawing, picture, upper, units, field_extend)
        names = ("Forecast error", "Persistence error")
        for axes, values, name in zip(lower, errors, names, strict=True):
            picture = draw_field(axes, frame, values, (-limit, limit), style.ERROR_COLOURS)
            axes.set_title(f"{name}, RMSE {area_rmse(values, fields.weights)} {units}".rstrip())
        label = f"error [{units}]" if units else "error"
        colour_bar(drawing, picture, lower, label, error_extend)
        drawing.suptitle(f"{fields.variable}, valid {format_date(fields.valid_date)}, {fields.lead_time} ahead")
        return style.save(drawing, path)


def format_date(date: Any) -> str:
    """Write a date without the parts that are zero: 2016-02-01 06:00, 2016-02-01, or a whole month: 2016-02."""
    if np.datetime_data(np.datetime64(date))[0] == "M":
        return str(np.datetime64(date))
    date = np.datetime64(date, "m")
    day = date.astype("datetime64[D]")
    return str(day) if date == day else str(date).replace("T", " ")


def draw_field(
    axes: Axes, frame: MapFrame, values: NDArray[Any], limits: tuple[float, float], colours: str
) -> AxesImage:
    """Draw a field [G] with coastlines and outline; `limits` are the lowest and highest colour."""
    axes.fill(*frame.outline.T, facecolor=style.NO_DATA, edgecolor="none", zorder=0)
    picture = axes.imshow(
        frame.image(values), extent=frame.extent, origin="lower", interpolation="nearest",
        cmap=colours, vmin=limits[0], vmax=limits[1], aspect=frame.aspect, zorder=1,
    )  # fmt: skip
    for line in frame.graticule:
        axes.plot(*line.T, color="black", linewidth=0.4, alpha=0.25, zorder=2)
    axes.plot(*frame.coastlines.T, color="black", linewidth=0.5, alpha=0.6, zorder=2.5)
    axes.plot(*frame.outline.T, color="0.3", linewidth=0.9, zorder=3, solid_joinstyle="round")
    left, right, bottom, top = frame.extent
    margin_x, margin_y = 0.005 * (right - left), 0.008 * (top - bottom)
    axes.set_xlim(left - margin_x, right + margin_x)
    axes.set_ylim(bottom - margin_y, top + margin_y)
    if frame.is_global:
        axes.set_axis_off()
    else:
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
        axes.locator_params(nbins=5)
        axes.xaxis.set_major_formatter(lambda value, _: _degrees((value + 180.0) % 360.0 - 180.0, "EW"))
        axes.yaxis.set_major_formatter(lambda value, _: _degrees(value, "NS"))
        axes.tick_params(labelsize=8, length=3)
    return picture


def colour_bar(drawing: Any, picture: AxesImage, row: Any, label: str, extend: str) -> None:
    """Draw the colour bar of a row of panels; `extend` tells which ends are clipped."""
    bar = drawing.colorbar(picture, ax=list(row), extend=extend, fraction=0.022, pad=0.015, aspect=22, shrink=0.9)
    bar.outline.set_linewidth(0.6)
    bar.ax.tick_params(labelsize=9, length=3)
    bar.ax.locator_params(nbins=7)
    if label:
        bar.set_label(label)


def colour_range(values: NDArray[np.float64]) -> tuple[float, float, str]:
    """Return the lowest and highest colour and which ends are clipped."""
    finite = values[np.isfinite(values)]
    low, high = (float(limit) for limit in np.quantile(finite, _QUANTILES))
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if low == high:
        low, high = low - max(1e-12, 0.01 * abs(low)), high + max(1e-12, 0.01 * abs(high))
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return low, high, ends[bool(finite.min() < low), bool(finite.max() > high)]


def symmetric_range(values: NDArray[np.float64]) -> tuple[float, str]:
    """Return the highest colour of a scale that is symmetric about zero, and which ends are clipped."""
    finite = np.abs(values[np.isfinite(values)])
    if not finite.size or finite.max() == 0.0:
        return 1.0, "neither"
    limit = float(np.quantile(finite, _QUANTILES[1])) or float(finite.max())
    return limit, "both" if finite.max() > limit else "neither"


def _error_range(forecast: NDArray[np.float64], persistence: NDArray[np.float64]) -> tuple[float, str]:
    """Return the scale of both errors: no more than `_WIDEST` times the forecast's own, which would be pale in it."""
    own, (limit, extend) = symmetric_range(forecast)[0], symmetric_range(np.concatenate([forecast, persistence]))
    if np.nansum(np.abs(forecast)) > 0.0 and limit > _WIDEST * own:
        return _WIDEST * own, "both"
    return limit, extend


def area_rmse(error: NDArray[np.float64], weights: NDArray[Any]) -> str:
    """Return the area-weighted root mean square of an error [G], written out."""
    valid = np.isfinite(error)
    if not valid.any():
        return "nan"
    return format_value(float(np.sqrt(np.average(error[valid] ** 2, weights=np.asarray(weights)[valid]))))


def _degrees(value: float, hemispheres: str) -> str:
    if value == 0:
        return "0°"
    return f"{abs(value):g}°{hemispheres[0] if value > 0 else hemispheres[1]}"
