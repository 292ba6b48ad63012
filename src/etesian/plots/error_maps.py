"""Bias and RMSE at each grid point, a column for each lead time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etesian.inference.score_table import format_value
from etesian.plots import style
from etesian.plots.maps import area_rmse, colour_bar, colour_range, draw_field, symmetric_range
from etesian.plots.projection import MapFrame

_RMSE_COLOURS = "magma_r"


def plot_error_maps(
    name: str,
    units: str,
    lead_times: Sequence[str],
    bias: NDArray[np.float64],
    rmse: NDArray[np.float64],
    weights: NDArray[Any],
    frame: MapFrame,
    path: Path,
) -> Path:
    """Draw maps of bias and RMSE.

    Parameters
    ----------
    name, units : str
        Of the variable; units may be empty.
    lead_times : sequence of str (L,)
        Labels of the columns.
    bias, rmse : ndarray [L, G]
        Physical units; NaN where there is no value.
    weights : ndarray (G,)
        Area weights, for the numbers above the maps.
    frame : MapFrame
        Of the grid.
    path : Path
        The PNG, replaced if it is there.
    """
    label = f"[{style.pretty_units(units)}]" if units else ""
    left, right, bottom, top = frame.extent
    width = 4.6 if len(lead_times) > 1 else 6.5
    panel = float(np.clip(width * 0.95 * (top - bottom) / (right - left) * frame.aspect, 1.8, 6.0))
    with style.figure(width * len(lead_times) + 1.2, 2 * panel + 1.5) as drawing:
        upper, lower = drawing.subplots(2, len(lead_times), squeeze=False)
        limit, extend = symmetric_range(bias.ravel())
        for axes, values, lead in zip(upper, bias, lead_times, strict=True):
            picture = draw_field(axes, frame, values, (-limit, limit), style.ERROR_COLOURS)
            valid = np.isfinite(values)
            mean = format_value(float(np.average(values[valid], weights=weights[valid]))) if valid.any() else "nan"
            axes.set_title(f"Bias, {lead}: mean {mean}")
        colour_bar(drawing, picture, upper, f"bias {label}".rstrip(), extend)
        low, high, extend = colour_range(rmse.ravel()) if np.isfinite(rmse).any() else (0.0, 1.0, "neither")
        for axes, values, lead in zip(lower, rmse, lead_times, strict=True):
            picture = draw_field(axes, frame, values, (min(low, 0.0), high), _RMSE_COLOURS)
            axes.set_title(f"RMSE, {lead}: {area_rmse(values, weights)}")
        colour_bar(drawing, picture, lower, f"RMSE {label}".rstrip(), "max" if extend in ("max", "both") else "neither")
        drawing.suptitle(f"{name}: errors at each grid point")
        return style.save(drawing, path)
