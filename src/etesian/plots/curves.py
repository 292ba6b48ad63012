"""Curves of a run: losses by step, scores by lead time."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from etesian.inference.score_table import LABELS, format_value
from etesian.inference.scores import MODEL, ScoreTable
from etesian.plots import style

Series = tuple[NDArray[np.float64], NDArray[np.float64]]

_SQUEEZED = 1.6  # times the others: what a source has beyond is cut off, and written
_MANY_ROWS = 100  # rows above which a running mean is drawn over the noise
_TRAIN_COLOUR, _VALIDATION_COLOUR, _RATE_COLOUR = "#0072B2", "#D55E00", "0.55"


def read_history(path: Path) -> dict[str, Series]:
    """Read a ``metrics.csv``: for each column, the steps that have a value, and the values.

    Raises
    ------
    ValueError
        When the file has no column ``step``.
    """
    with open(path, newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        columns = list(reader.fieldnames or [])
        if "step" not in columns:
            raise ValueError(f"{str(path)!r} has no column 'step'")
        rows = [row for row in reader if all(row[column] is not None for column in columns)]  # a last line may be cut
    history = {}
    for column in columns:
        pairs = [(float(row["step"]), float(row[column])) for row in rows if row[column] != ""]
        history[column] = (np.array([step for step, _ in pairs]), np.array([value for _, value in pairs]))
    return history


def plot_losses(
    history: dict[str, Series],
    path: Path,
    *,
    train: str = "train_loss",
    validation: str = "val_loss",
    learning_rate: str = "lr",
) -> Path:
    """Draw the training and validation loss, and the learning rate on an axis of its own.

    Parameters
    ----------
    history : dict of str to (steps, values)
        From :func:`read_history`.
    path : Path
        The PNG, replaced if it is there.
    train, validation, learning_rate : str
        Names of the columns. All but the first may be absent, as in a run without validation.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ValueError
        When there is no training loss.
    """
    if train not in history or not len(history[train][0]):
        raise ValueError(f"the history has no {train!r}, but {', '.join(history) or 'nothing'}")
    with style.figure(8.0, 4.5) as drawing:
        axes = drawing.subplots()
        style.tidy(axes)
        steps, values = history[train]
        noisy = len(steps) > _MANY_ROWS
        axes.plot(
            steps, values, color=_TRAIN_COLOUR, alpha=0.3 if noisy else 1.0, linewidth=0.8 if noisy else 1.6,
            label=None if noisy else "training", marker="o" if len(steps) == 1 else None,
        )  # fmt: skip
        if noisy:
            axes.plot(*_running_mean(steps, values), color=_TRAIN_COLOUR, label="training (running mean)")
        drawn = [values]
        if validation in history and len(history[validation][0]):
            size = 4 if len(history[validation][0]) < 60 else 2
            axes.plot(*history[validation], color=_VALIDATION_COLOUR, label="validation", marker="o", markersize=size)
            drawn.append(history[validation][1])
        if _spans_a_decade(np.concatenate(drawn)):
            style.log_scale(axes, np.concatenate(drawn))
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.set_title("Loss", loc="left")
        if learning_rate in history and len(history[learning_rate][0]):
            _draw_rate(axes, history[learning_rate])
        drawing.legend(loc="outside lower center", ncols=3)
        return style.save(drawing, path)


def plot_scores(scores: ScoreTable, path: Path, variables: Sequence[str] | None = None) -> Path:
    """Draw the RMSE of the model and its references, a panel for each variable.

    Curves by lead time; bars where there is one lead time only.

    Parameters
    ----------
    scores : ScoreTable
        The scores.
    path : Path
        The PNG, replaced if it is there.
    variables : sequence of str, optional
        Those that are drawn; all of them when left out.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ValueError
        For variables that have no scores.
    """
    names = list(scores.variables if variables is None else variables)
    unknown = [name for name in names if name not in scores.variables]
    if unknown or not names:
        raise ValueError(f"there are no scores of {', '.join(unknown) or 'any variable'}")
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    bars = len(scores.lead_times) == 1
    with style.figure(max(6.5, 4.0 * columns), (1.9 if bars else 3.0) * rows + 0.8) as drawing:
        panels = drawing.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes, name in zip(panels, names, strict=False):
            units = style.pretty_units(scores.units.get(name, ""))
            values = scores.rmse[:, :, scores.variables.index(name)]  # [S, L]
            axes.set_title(f"{name} [{units}]" if units else name, loc="left")
            if bars:
                _draw_bars(axes, scores.sources, values[:, 0])
            else:
                _draw_lines(axes, scores, values)
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        if not bars:
            handles, labels = panels[0].get_legend_handles_labels()
            drawing.legend(handles, labels, loc="outside lower center", ncols=4)
        title = "Area-weighted RMSE over the test period"
        drawing.suptitle(f"{title}, {scores.lead_times[0]} ahead" if bars else title)
        return style.save(drawing, path)


def _draw_rate(axes: Axes, series: Series) -> None:
    right = axes.twinx()
    right.plot(*series, color=_RATE_COLOUR, linewidth=1.2, linestyle=(0, (4, 2)), label="learning rate")
    right.set_ylim(bottom=0.0)
    right.set_ylabel("learning rate", color=_RATE_COLOUR)
    right.tick_params(axis="y", colors=_RATE_COLOUR)
    right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    right.yaxis.get_offset_text().set_color(_RATE_COLOUR)
    right.spines["top"].set_visible(False)


def _draw_lines(axes: Axes, scores: ScoreTable, values: NDArray[np.float64]) -> None:
    style.tidy(axes)
    positions = np.arange(len(scores.lead_times))
    for source, name in enumerate(scores.sources):
        axes.plot(
            positions, values[source], color=style.source_colour(name, source), label=LABELS.get(name, name),
            marker="o", markersize=7 if name == MODEL else 3.5, linewidth=3.2 if name == MODEL else 1.4,
            zorder=2 if name == MODEL else 3,  # wide and below: a reference on the same curve stays visible
        )  # fmt: skip
    every = math.ceil(len(positions) / 5)
    axes.set_xticks(positions[::every], scores.lead_times[::every])
    axes.set_ylim(bottom=0.0)
    axes.margins(x=0.06)
    axes.set_xlabel("lead time")
    worst, limit = _beyond(values)
    name = scores.sources[worst]
    if limit is not None and name != MODEL:
        axes.set_ylim(top=limit)
        low, high = (format_value(float(end(values[worst]))) for end in (np.nanmin, np.nanmax))
        axes.annotate(
            f"{LABELS.get(name, name)}: {low} to {high}, beyond the scale", (0.99, 0.98), xycoords="axes fraction",
            ha="right", va="top", fontsize=8, color=style.source_colour(name, worst),
        )  # fmt: skip


def _beyond(values: NDArray[np.float64]) -> tuple[int, float | None]:
    """Return the source [S, L] that would squeeze the others, and where the axis ends without it; None if none does."""
    highest = np.nanmax(np.where(np.isfinite(values), values, 0.0), axis=1)
    worst = int(highest.argmax())
    rest = float(np.delete(highest, worst).max(initial=0.0))
    return worst, 1.25 * rest if 0.0 < _SQUEEZED * rest < highest[worst] else None


def _draw_bars(axes: Axes, sources: Sequence[str], values: NDArray[np.float64]) -> None:
    positions = np.arange(len(sources))
    colours = [style.source_colour(name, source) for source, name in enumerate(sources)]
    axes.barh(positions, np.nan_to_num(values), color=colours, height=0.65)
    for position, value in zip(positions, values, strict=True):
        axes.annotate(
            format_value(float(value)), (float(np.nan_to_num(value)), float(position)),
            xytext=(4, 0), textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    axes.set_yticks(positions, [LABELS.get(name, name) for name in sources])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _spans_a_decade(values: NDArray[np.float64]) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0.0 and finite.max() / finite.min() >= 10.0)


def _running_mean(steps: Any, values: Any) -> Series:
    width = max(3, len(values) // 40) | 1
    kernel = np.ones(width) / width
    return np.convolve(steps, kernel, "valid"), np.convolve(values, kernel, "valid")
