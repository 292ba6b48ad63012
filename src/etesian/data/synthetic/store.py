"""From the options to the store, a date at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etesian.data.grids import Grid, named_grid
from etesian.data.store import check_target, write_store
from etesian.data.synthetic.catalogue import Field
from etesian.data.synthetic.fields import states
from etesian.data.synthetic.options import SyntheticStore
from etesian.errors import Problem, UserError


@dataclass(frozen=True)
class Plan:
    """A store that can be written: made by :func:`plan_store`.

    Attributes
    ----------
    path : Path
        Where it goes.
    options : SyntheticStore
        What it holds, as it was asked for.
    dates : array (T,)
        The dates.
    fields : tuple of Field
        The variables, in order.
    grid : Grid
        The points.
    overwrite : bool
        Replace the store that is there.
    """

    path: Path
    options: SyntheticStore
    dates: NDArray[np.datetime64]
    fields: tuple[Field, ...]
    grid: Grid
    overwrite: bool = False

    @property
    def num_points(self) -> int:
        """Grid points, G."""
        return sum(self.grid.row_lengths)

    def write(self, progress: Callable[[int], None] | None = None) -> Path:
        """Write the store, calling `progress` with the number of dates written so far, and return its path."""
        return write_store(
            self.path,
            states(self.fields, self.grid, self.dates, self.options.seed),
            self.dates,
            self.grid.latitudes,
            self.grid.longitudes,
            [field.name for field in self.fields],
            {field.name: field.metadata for field in self.fields},
            self.options.frequency,
            {
                "resolution": self.grid.name,
                "field_shape": self.grid.field_shape,
                "description": "Synthetic: travelling planetary waves and noise, named and sized like weather.",
                "synthetic": {"seed": self.options.seed},
            },
            overwrite=self.overwrite,
            progress=progress,
        )


def plan_store(
    path: Path, options: SyntheticStore, *, fields: Sequence[Field] | None = None, overwrite: bool = False
) -> Plan:
    """Check everything that can be checked before a store is made.

    Parameters
    ----------
    path : Path
        Ends in ``.zarr``.
    options : SyntheticStore
        What it holds.
    fields : sequence of Field, optional
        The variables, in place of those that `options` names.
    overwrite : bool
        Replace the store that is there.

    Raises
    ------
    UserError
        Nothing can be written there, the options make no sense, or the disk has no room for it.
    """
    check_target(path, overwrite=overwrite)
    parts: list[Any] = []
    problems: list[Problem] = []
    for part in (options.times, lambda: options.num_variables() if fields is None else len(fields),
                 lambda: named_grid(options.grid)):  # fmt: skip
        try:
            parts.append(part())
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError.collect(problems)
    dates, number, grid = parts
    _check_room(path, 4 * len(dates) * number * sum(grid.row_lengths))
    return Plan(path, options, dates, options.fields() if fields is None else tuple(fields), grid, overwrite)


def size_of(path: Path) -> int:
    """Return the bytes of a store on disk."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _check_room(path: Path, needed: int) -> None:
    """Check that the disk holds the fields uncompressed."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise UserError(
            f"the store may take {needed / 1e9:.1f} GB, and {there} has {free / 1e9:.1f} GB free",
            where=str(path),
            mend="fewer --dates or variables, a coarser --grid, or another disk",
        )
