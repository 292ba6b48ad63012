"""Loss curves beside the band of several seeds, and their differences step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from etesian.plots import style

_BAND_COLOUR, _WIDE_COLOUR = "0.86", "0.6"
_LINES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_SMALLEST = 1e-9  # where a difference of 0 is drawn on a logarithmic axis

Values = NDArray[np.float64]


def plot_loss_bands(
    path: Path,
    *,
    low: Values,
    high: Values,
    window: int,
    room: float,
    tolerance: float,
    curves: Mapping[str, Values],
    differences: Mapping[str, Values],
) -> Path:
    """Draw smoothed curves over a band, where in the band they lie, and relative differences of the first steps.

    Parameters
    ----------
    path : Path
        The PNG, replaced if it is there.
    low, high : ndarray, shape (S - window + 1,)
        Edges of the band over a run of S steps.
    window : int
        Steps of the running mean.
    room : float
        How far outside a curve may be, in widths of the band.
    tolerance : float
        Largest difference that is allowed.
    curves : mapping of str to ndarray, shape (S - window + 1,)
        Smoothed losses by name; the first is drawn wide, below the others.
    differences : mapping of str to ndarray, shape (steps,)
        Relative differences of the loss at the first steps; their names are among those of the curves.

    Returns
    -------
    Path
        `path`.
    """
    steps = np.arange(window, window + len(low))  # a running mean stands at the last of its steps
    looks = {name: _look(position) for position, name in enumerate(curves, start=-1)}
    with style.figure(10.0, 6.2) as drawing:
        grid = drawing.add_gridspec(2, 2, width_ratios=(1.15, 1.0))
        left, upper, lower = (drawing.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
        for axes in (left, upper, lower):
            style.tidy(axes)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        left.fill_between(steps, low, high, color=_BAND_COLOUR, linewidth=0, label="seeds of eager, lowest to highest")
        upper.axhspan(-1.0, 1.0, color=_BAND_COLOUR, linewidth=0)
        for name, values in curves.items():
            left.plot(steps, values, label=name, **looks[name])
            upper.plot(steps, (2 * values - low - high) / (high - low), **looks[name])
        _label(left, f"Loss in bf16-mixed, running mean of {window} steps", "loss")
        style.log_scale(left, np.concatenate([low, high, *curves.values()]))
        edge = 1 + 2 * room
        for side in (-edge, edge):
            upper.axhline(side, color=style.INK, linewidth=0.8, linestyle=(0, (3, 3)))
        upper.set_yticks([-1, 0, 1], ["lowest", "middle", "highest"])
        _label(upper, "Place in the band (dashed: allowed)", "")
        _draw_differences(lower, differences, tolerance, looks)
        drawing.legend(loc="outside lower center", ncols=4)
        return style.save(drawing, path)


def _draw_differences(
    axes: Axes, differences: Mapping[str, Values], tolerance: float, looks: Mapping[str, dict[str, Any]]
) -> None:
    axes.axhline(tolerance, color=style.INK, linewidth=0.8, linestyle=(0, (3, 3)))
    for name, values in differences.items():
        axes.plot(
            np.arange(1, len(values) + 1), np.maximum(values, _SMALLEST), marker="o", markersize=3,
            **looks[name],
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=_SMALLEST / 2, top=10 * max(tolerance, *(values.max() for values in differences.values())))
    _label(axes, "Difference to eager in 32 bits", "relative difference")


def _look(position: int) -> dict[str, Any]:
    if position < 0:
        return {"color": _WIDE_COLOUR, "linewidth": 5.0, "solid_capstyle": "round"}
    colours = (*style.SOURCE_COLOURS.values(), *style.OTHER_COLOURS)
    return {
        "color": colours[position % len(colours)],
        "linestyle": _LINES[position // len(colours) % len(_LINES)],
        "linewidth": 1.2,
    }


def _label(axes: Axes, title: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("step")
    axes.set_ylabel(y)
