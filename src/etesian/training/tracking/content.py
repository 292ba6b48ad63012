"""What a run folder holds for a tracker: parameters, the table of kernels, metrics, files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from etesian.errors import UserError
from etesian.inference.scores import MODEL
from etesian.kernels.record import KernelRecord, config_key, from_json

FILES = ("config.yaml", "kernels.json", "environment.json", "metrics.csv", "metrics.json")
"""Files of a run folder that go to a tracker as they are."""

_LONGEST = 500  # letters of a parameter's value
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)


class Point(NamedTuple):
    """One value of a metric at one step; `time` in milliseconds since 1970, None where nobody noted it."""

    key: str
    value: float
    step: int
    time: int | None = None


def metric_name(text: str) -> str:
    """Return a name with letters that every tracker takes."""
    return _NOT_IN_NAMES.sub("_", text)


def read_points(folder: Path) -> list[Point]:
    """Return the metrics of a run folder: those of ``metrics.csv``, then the scores of ``metrics.json`` at its end.

    Raises
    ------
    UserError
        If a file is not as it was written.
    """
    points = list(_points_of_csv(folder / "metrics.csv"))
    scores = folder / "metrics.json"
    if scores.is_file() and points:
        last = points[-1].step
        points += [Point(key, value, last) for key, value in score_metrics(_json(scores)).items()]
    return points


def _points_of_csv(file: Path) -> Iterator[Point]:
    """Read a ``metrics.csv``; half a line at its end is left out."""
    if not file.is_file():
        return
    text = file.read_bytes().decode("utf-8", errors="replace")
    for row in csv.DictReader(text[: text.rfind("\n") + 1].splitlines()):
        try:
            step = int(row["step"])
            yield from (
                Point(metric_name(key), float(value), step) for key, value in row.items() if key != "step" and value
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise UserError(f"{file} is no history of a run", where=str(file)) from cause


def score_metrics(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of the model as metrics: ``test_rmse/VARIABLE/LEAD_TIME`` and ``test_skill/...``.

    Parameters
    ----------
    scores : mapping
        What ``metrics.json`` holds.
    """
    metrics = {}
    for variable, of_variable in scores["variables"].items():
        for label, at_lead in of_variable["lead_times"].items():
            place = metric_name(f"{variable}/{label.replace(' ', '')}")
            for name, value in (("test_rmse", at_lead[MODEL]["rmse"]), ("test_skill", at_lead["skill"])):
                if value is not None and math.isfinite(value):
                    metrics[f"{name}/{place}"] = float(value)
    return metrics


def read_parameters(folder: Path) -> dict[str, str]:
    """Return the config of a run folder as flat texts by their full keys, and its kernels as ``kernels.KEY``.

    Raises
    ------
    UserError
        If ``config.yaml`` or ``kernels.json`` is missing or not as it was written.
    """
    file = folder / "config.yaml"
    try:
        config = yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError) as cause:
        raise UserError(f"{file} can't be read: {' '.join(str(cause).split())}", where=str(file)) from cause
    parameters = dict(_flat(config))
    for record in read_kernels(folder):
        parameters[metric_name(f"kernels.{config_key(record.component, record.slot)}")] = _cut(called(record))
    return parameters


def read_kernels(folder: Path) -> list[KernelRecord]:
    """Return the kernels of a run folder."""
    file = folder / "kernels.json"
    try:
        return from_json(_json(file))
    except TypeError as cause:
        raise UserError(f"{file} is no record of kernels", where=str(file)) from cause


def pictures(folder: Path) -> list[Path]:
    """Return the pictures of a run folder, by name."""
    return sorted((folder / "plots").glob("*.png"))


def called(record: KernelRecord) -> str:
    """Return a kernel as it is called: ``torch.nn.LayerNorm(eps=1e-05)``."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in record.arguments.items())
    return f"{record.target}({arguments})"


COLUMNS = ("slot", "kernel", "family", "library", "origin", "note")
"""Head of the table of kernels."""


def kernel_rows(records: Iterable[KernelRecord]) -> list[list[str]]:
    """Return the table of kernels, a row for each."""
    return [
        [config_key(record.component, record.slot), called(record), record.family,
         f"{record.library} {record.version}".strip(), record.origin, record.note]
        for record in records
    ]  # fmt: skip


def markdown(records: Sequence[KernelRecord]) -> str:
    """Lay the kernels out as a table in Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *kernel_rows(records)]
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    lines[1] = "|" + "---|" * len(COLUMNS)
    return "\n".join(lines)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _flat(entry, f"{key}.{name}" if key else str(name))
    else:
        yield metric_name(key), _cut(value if isinstance(value, str) else json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as cause:
        raise UserError(f"{file} can't be read: {' '.join(str(cause).split())}", where=str(file)) from cause
