"""What all pictures share: fonts, colours, and writing them without a display, all or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from etesian.files import atomic_file
from etesian.inference.references import CLIMATOLOGY, DAMPED_PERSISTENCE, PERSISTENCE
from etesian.inference.scores import MODEL

DPI = 150
FIELD_COLOURS = "viridis"
ERROR_COLOURS = "RdBu_r"
NO_DATA = "0.85"
INK = "0.25"

SOURCE_COLOURS = {MODEL: "#0072B2", PERSISTENCE: "#999999", DAMPED_PERSISTENCE: "#D55E00", CLIMATOLOGY: "#009E73"}
"""Colours that stay apart with the common colour deficiencies (Okabe and Ito)."""
OTHER_COLOURS = ("#CC79A7", "#56B4E9", "#E69F00", "#000000")

_SETTINGS: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titlepad": 6.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "0.6",
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "figure.titlesize": 12.0,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.08,
}


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of this size in inches, with the common settings in force meanwhile.

    It belongs to no window and to no global list of figures.
    """
    with mpl.rc_context(_SETTINGS):
        drawing = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing


def save(drawing: Figure, path: Path) -> Path:
    """Write a PNG: the whole picture or none, also when the process ends meanwhile."""
    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"pictures are written as .png, not {path.name!r}")
    with atomic_file(path) as file:
        drawing.savefig(file, format="png")
    return path


def pretty_units(units: str) -> str:
    """Write the exponents of units as such: ``m s**-1`` is m s⁻¹."""
    return re.sub(r"\*\*(-?\d+)", lambda power: power[1].translate(_SUPERSCRIPTS), units)


def tidy(axes: Axes) -> None:
    """Take off the upper and right edge and draw a faint horizontal grid."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)


def log_scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """Make the vertical axis logarithmic; few decades are labelled within, as plain numbers."""
    axes.set_yscale("log")
    if np.nanmax(values) / np.nanmin(values) < 1e4:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=16))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def source_colour(name: str, position: int) -> str:
    """Return the colour of a source: the same in every picture."""
    return SOURCE_COLOURS.get(name, OTHER_COLOURS[position % len(OTHER_COLOURS)])
