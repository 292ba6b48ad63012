"""Scores as a table for the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from etesian.inference.references import CLIMATOLOGY, DAMPED_PERSISTENCE, PERSISTENCE
from etesian.inference.scores import MODEL, ScoreTable

LABELS = {
    MODEL: "model",
    PERSISTENCE: "persistence",
    DAMPED_PERSISTENCE: "damped persistence",
    CLIMATOLOGY: "climatology",
}
"""How the sources are called in tables and pictures."""

_SHORT = {MODEL: "model", PERSISTENCE: "persist.", CLIMATOLOGY: "climat."}


def lead_labels(dates: Any, step: int, lead_times: int) -> tuple[str, ...]:
    """Name the lead times: whole months for monthly dates, else hours or days.

    Parameters
    ----------
    dates : array_like (T,) of datetime64
        Dates of the dataset, at least two.
    step : int
        Dates from one lead time to the next.
    lead_times : int
        Number of lead times.
    """
    dates = np.asarray(dates, dtype="datetime64[s]")
    months = np.diff(dates.astype("datetime64[M]").astype(int))
    since = dates - dates.astype("datetime64[M]").astype("datetime64[s]")
    counts = [step * (lead + 1) for lead in range(lead_times)]
    if len(set(months.tolist())) == 1 and months[0] > 0 and (since == since[0]).all():
        return tuple(_plural(int(months[0]) * count, "month") for count in counts)
    hours = float(np.diff(dates).min() / np.timedelta64(1, "s")) / 3600.0
    if hours % 24 == 0:
        return tuple(_plural(round(hours / 24) * count, "day") for count in counts)
    return tuple(f"{hours * count:g} h" for count in counts)


def scores_table(scores: ScoreTable, title: str = "RMSE over the test period") -> Table:
    """Lay the scores out in at most 80 columns: a row for each variable and lead time.

    The lowest RMSE of a row is bold; skill is 1 - RMSE / RMSE of the best reference, in percent.
    """
    table = Table(
        title=title,
        caption=f"area-weighted over {_plural(scores.forecasts, 'forecast')};"
        " skill: by how much the model's RMSE is below the best reference's",
        box=box.SIMPLE_HEAD, padding=0, pad_edge=False, title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("variable", overflow="fold", min_width=8)
    table.add_column("lead time", no_wrap=True, justify="right")
    for name in scores.sources:
        table.add_column("\n".join(LABELS.get(name, name).split()), justify="right", no_wrap=True)
    table.add_column("skill", justify="right", no_wrap=True)
    for position, variable in enumerate(scores.variables):
        units = scores.units.get(variable)
        for lead, label in enumerate(scores.lead_times):
            name = (f"{variable} [{units}]" if units else variable) if lead == 0 else ""
            last = lead == len(scores.lead_times) - 1
            cells = _row(scores.rmse[:, lead, position])
            table.add_row(
                Text(name), label, *cells, _percent(scores.skill(lead, position)), end_section=last and lead > 0
            )
    return table


def measures_table(scores: ScoreTable) -> Table:
    """Lay mean absolute error, bias and anomaly correlation out in at most 80 columns.

    The anomaly correlation of climatology is none: its anomalies are zero everywhere.
    """
    shown = [name for name in (MODEL, PERSISTENCE, CLIMATOLOGY) if name in scores.sources]
    columns = [("MAE", scores.mae, shown), ("bias", scores.bias, [MODEL])]
    if CLIMATOLOGY in scores.sources:
        columns.append(("ACC", scores.acc, [MODEL, PERSISTENCE]))
    table = Table(
        title="MAE, bias" + (" and anomaly correlation (ACC)" if CLIMATOLOGY in scores.sources else ""),
        caption="n: forecasts behind each score",
        box=box.SIMPLE_HEAD, padding=0, pad_edge=False, title_justify="left", caption_justify="left",
    )  # fmt: skip
    table.add_column("variable", overflow="fold", min_width=8)
    table.add_column("lead time", no_wrap=True, justify="right")
    for head, _, sources in columns:
        for name in sources:
            table.add_column(f"{head}\n{_SHORT.get(name, name)}", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for position, variable in enumerate(scores.variables):
        units = scores.units.get(variable)
        for lead, label in enumerate(scores.lead_times):
            values = [
                (head, float(array[scores.sources.index(name), lead, position]))
                for head, array, names in columns
                for name in names
            ]
            cells = [_correlation(value) if head == "ACC" else format_value(value) for head, value in values]
            name = (f"{variable} [{units}]" if units else variable) if lead == 0 else ""
            last = lead == len(scores.lead_times) - 1
            table.add_row(Text(name), label, *cells, str(scores.samples[lead, position]), end_section=last and lead > 0)
    return table


def scores_to_json(scores: ScoreTable) -> dict[str, Any]:
    """Return the scores as JSON has them: variable, lead time, source; what is not a number is null."""
    measures = {"rmse": scores.rmse, "mae": scores.mae, "bias": scores.bias, "acc": scores.acc}
    return {
        "forecasts": scores.forecasts,
        "weighting": "area",
        "variables": {
            variable: {
                "units": scores.units.get(variable),
                "lead_times": {
                    label: {
                        **{
                            name: {key: _number(values[source, lead, position]) for key, values in measures.items()}
                            for source, name in enumerate(scores.sources)
                        },
                        "best_reference": scores.best_reference(lead, position),
                        "skill": _number(scores.skill(lead, position)),
                    }
                    for lead, label in enumerate(scores.lead_times)
                },
            }
            for position, variable in enumerate(scores.variables)
        },
    }


def _row(values: Iterable[float]) -> list[Text]:
    values = [float(value) for value in values]
    finite = [value for value in values if math.isfinite(value)]
    lowest = min(finite) if finite else None
    return [Text(format_value(value), style="bold" if value == lowest else "") for value in values]


def format_value(value: float) -> str:
    """Write a number with four significant digits, and without an exponent where that is readable."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    if value == 0.0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3e}"
    rounded = float(f"{value:.3e}")
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(rounded))))}f}"


def _percent(value: float) -> str:
    return f"{100.0 * value:+.1f}%" if math.isfinite(value) else "-"


def _correlation(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plural(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
