"""``metrics.csv``: the history of a run, on disk after every row.

One row a step, columns ``epoch``, ``step`` and one for each metric, added when it first comes.
"""

from __future__ import annotations

import csv
import io
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from etesian.errors import UserError
from etesian.files import atomic_file

_FIXED = ("epoch", "step")


class MetricsCSV(Logger):
    """A logger that writes a wide CSV.

    Parameters
    ----------
    path : Path
        The file. One that is there is continued: rows at or after the first step that is logged
        are dropped, so that no step comes twice.

    Notes
    -----
    Every row is handed to the operating system before :meth:`log_metrics` returns, so what a
    killed process had logged is there. What it leaves of a half-written line is dropped when the
    file is continued. Values of one step that are logged one after the other share its row. A new
    column rewrites the file (a new one replaces the old); no row is lost on the way. Only rank 0
    writes. Steps are numbered from 0, as Lightning numbers them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = Path(path)
        self._columns: list[str] = []
        self._row: dict[str, str] = {}  # the last row, which may still grow
        self._row_length = 0  # bytes of its line
        self._is_open = False

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return self.path.stem

    @property
    def version(self) -> str:
        """There is one file a run: an empty name."""
        return ""

    @property
    def save_dir(self) -> str:
        """Folder of the file."""
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml and kernels.json lie beside the file, which holds numbers alone."""

    @rank_zero_only
    def resume_from(self, step: int) -> None:
        """Drop the rows of this step and later ones, which the run will log again.

        Parameters
        ----------
        step : int
            Optimiser steps done at the checkpoint that the run goes on from (``global_step``).
        """
        self._open(step)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write the metrics of a step.

        Raises
        ------
        ValueError
            Without a step, or for one before the last that was written.
        """
        if step is None:
            raise ValueError("metrics.csv needs the step that metrics belong to")
        if not self._is_open:
            self._open(step)
        values = {key: _text(value) for key, value in metrics.items()}
        values["step"] = str(int(step))
        if "epoch" in values:
            values["epoch"] = str(int(float(values["epoch"])))
        last = int(self._row["step"]) if self._row else -1
        if step < last:
            raise ValueError(f"step {step} comes after step {last} in {str(self.path)!r}")
        row = {**self._row, **values} if step == last else values
        line = self._format(row)
        new = [key for key in values if key not in self._columns]
        if new or (step == last and len(line) < self._row_length):  # neither fits into the file as it is
            rows = [earlier for earlier in self._read() if int(earlier["step"]) < step]
            self._columns += new
            self._rewrite([*rows, row])
        else:
            self._write(line, over_last=step == last)
        self._row = row

    def _open(self, step: int) -> None:
        """Start or continue the file before `step` is logged."""
        self._is_open = True
        self._columns, self._row = list(_FIXED), {}
        rows = []
        if self.path.exists() and self.path.stat().st_size:
            rows = [row for row in self._read() if int(row["step"]) < step]
        self._rewrite(rows)
        self._row = rows[-1] if rows else {}

    def _read(self) -> list[dict[str, str]]:
        """Read all whole rows, and the columns with them."""
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        lines = text[: text.rfind("\n") + 1].splitlines()  # what follows the last line break is half a line
        header, *body = list(csv.reader(lines)) or [list(_FIXED)]
        if tuple(header[:2]) != _FIXED:
            raise UserError(
                f"{str(self.path)!r} is no history of a run: its columns are {', '.join(header)[:80]!r}",
                where=str(self.path),
                allowed="a file that starts with the columns epoch, step",
                mend="move it out of the run folder",
            )
        broken = [
            number
            for number, row in enumerate(body, start=2)
            if len(row) != len(header) or not (row[1].isascii() and row[1].isdigit())
        ]
        if broken:
            raise UserError(
                f"line {broken[0]} of {str(self.path)!r} does not fit its columns",
                where=str(self.path),
                mend="mend or delete that line",
            )
        self._columns = header
        return [dict(zip(header, row, strict=True)) for row in body]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """Replace the file as a whole."""
        lines = [_line(self._columns), *(self._format(row) for row in rows)]
        with atomic_file(self.path) as file:
            file.write(b"".join(lines))
        self._row_length = len(lines[-1]) if rows else 0

    def _write(self, line: bytes, *, over_last: bool) -> None:
        """Write a line at the end, or over the last one (which is not longer), in one call to the operating system."""
        handle = os.open(self.path, os.O_WRONLY)
        try:
            end = os.fstat(handle).st_size
            start = end - self._row_length if over_last else end
            written = os.pwrite(handle, line, start)
        finally:
            os.close(handle)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written to {str(self.path)!r}")
        self._row_length = len(line)

    def _format(self, row: Mapping[str, str]) -> bytes:
        return _line([row.get(column, "") for column in self._columns])


def _line(cells: list[str]) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue().encode("utf-8")


def _text(value: Any) -> str:
    """Write a number so that reading it gives the same number."""
    return repr(float(value))
