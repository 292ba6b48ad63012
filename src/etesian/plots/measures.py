"""Scores by lead time: a row of panels for each variable, a panel for each measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from etesian.inference.references import PERSISTENCE
from etesian.inference.score_table import LABELS, format_value
from etesian.inference.scores import MODEL, ScoreTable
from etesian.plots import style

_TITLES = {"rmse": "RMSE", "mae": "MAE", "bias": "Bias", "acc": "Anomaly correlation"}
_HEADROOM = 1.35  # of the highest of the other curves: what persistence has beyond is cut off, and told


def plot_measures(scores: ScoreTable, path: Path, variables: Sequence[str], period: str) -> Path:
    """Draw RMSE, MAE, bias and, with a climatology, the anomaly correlation of the model and its references.

    Persistence may be several times as wrong as all others; its curve is cut off then, and its range written.

    Parameters
    ----------
    scores : ScoreTable
        The scores.
    path : Path
        The PNG, replaced if it is there.
    variables : sequence of str
        Those that are drawn.
    period : str
        For the title.
    """
    measures = [name for name in _TITLES if name != "acc" or np.isfinite(scores.acc).any()]
    with style.figure(3.5 * len(measures), 2.4 * len(variables) + 1.1) as drawing:
        grid = drawing.subplots(len(variables), len(measures), squeeze=False)
        for row, name in zip(grid, variables, strict=True):
            units = style.pretty_units(scores.units.get(name, ""))
            for axes, measure in zip(row, measures, strict=True):
                label = _TITLES[measure] + (f" [{units}]" if units and measure != "acc" else "")
                axes.set_title(f"{name}: {label}", loc="left")
                _draw_panel(axes, scores, measure, scores.variables.index(name))
        for axes in grid[-1]:
            axes.set_xlabel("lead time")
        _legend(drawing, grid[0, 0])
        counted = f"{scores.forecasts} forecast" + ("s" if scores.forecasts != 1 else "")
        drawing.suptitle(f"Area-weighted scores, {period}, {counted}")
        return style.save(drawing, path)


def _legend(drawing: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=4)


def _draw_panel(axes: Axes, scores: ScoreTable, measure: str, column: int) -> None:
    style.tidy(axes)
    values = getattr(scores, measure)[..., column]  # [S, L]
    positions = np.arange(len(scores.lead_times))
    for source, name in enumerate(scores.sources):
        is_model = name == MODEL
        axes.plot(
            positions, values[source], color=style.source_colour(name, source), label=LABELS.get(name, name),
            marker="o", markersize=6 if is_model else 3.5, linewidth=2.8 if is_model else 1.4,
            zorder=2 if is_model else 3,
        )  # fmt: skip
    _limit(axes, scores, measure, values)
    every = math.ceil(len(positions) / 4)
    axes.set_xticks(positions[::every], [scores.lead_times[position] for position in positions[::every]])
    axes.margins(x=0.08)
    axes.locator_params(axis="y", nbins=5)
    if len(positions) == 1:
        axes.set_xlim(-0.5, 0.5)


def _limit(axes: Axes, scores: ScoreTable, measure: str, values: NDArray[np.float64]) -> None:
    """Choose the range of the values, and cut persistence off where it would press the others together."""
    if measure == "acc":
        finite = values[np.isfinite(values)]
        lowest = float(finite.min()) if finite.size else 0.0
        axes.set_ylim(min(0.0, lowest - 0.05) if lowest < 0.2 else math.floor(10.0 * lowest - 0.2) / 10.0, 1.02)
        return
    others = np.abs(values[[name != PERSISTENCE for name in scores.sources]])
    others = others[np.isfinite(others)]
    if measure == "bias":
        axes.axhline(0.0, color="0.5", linewidth=0.8, zorder=1)
    if not others.size or others.max() == 0.0 or PERSISTENCE not in scores.sources:
        if measure != "bias":
            axes.set_ylim(bottom=0.0)
        return
    highest, room = float(np.nanmax(np.abs(values))), float(others.max()) * _HEADROOM
    top = min(highest * 1.08, room)
    axes.set_ylim(-top if measure == "bias" else 0.0, top)
    if highest > room:
        persistence = np.abs(values[scores.sources.index(PERSISTENCE)])
        low, high = (format_value(float(limit)) for limit in (np.nanmin(persistence), np.nanmax(persistence)))
        text = f"persistence: {high}" if low == high else f"persistence: {low} to {high}"
        axes.annotate(text, (0.99, 0.99), xycoords="axes fraction", ha="right", va="top", fontsize=8, color="0.4")
