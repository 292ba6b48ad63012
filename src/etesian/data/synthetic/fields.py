"""The fields: a few planetary waves that travel, each variable with its own, and a little noise.

Every wave of one kind travels at one speed in all variables, so the next state follows from the last one: there is
something to be learnt. A field's waves depend on its name and the seed alone, not on what else the store holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from etesian.data.forcings import of_hour, of_place, of_season
from etesian.data.grids import Grid
from etesian.data.shallow_water.harmonics import legendre
from etesian.data.synthetic.catalogue import Field

TRUNCATION = 4
"""Largest wavenumber."""

NOISE = 0.02
"""Share of a field's standard deviation."""

Floats = NDArray[np.float32]


class Waves:
    """Travelling waves on a grid.

    Parameters
    ----------
    grid : Grid
        The points.

    Notes
    -----
    A wave is ``P_n^m(sin latitude) cos(m longitude + phase - 2 pi m t / period_n)``, with a period of
    20 - 3 n days around the earth; waves with m = 0 stand still.
    """

    def __init__(self, grid: Grid) -> None:
        rows = np.radians(grid.row_latitudes)
        functions, _ = legendre(TRUNCATION, np.sin(rows), np.cos(rows))  # M J N
        self.numbers = [(n, m) for n in range(1, TRUNCATION + 1) for m in range(n + 1)]
        longitudes = np.radians(grid.longitudes)
        self.basis = np.empty((2 * len(self.numbers), len(longitudes)), np.float32)  # cosines, then sines
        for index, (n, m) in enumerate(self.numbers):
            along = np.repeat(functions[m, :, n], grid.row_lengths) * (np.sqrt(2.0) if m else 1.0)
            self.basis[index] = along * np.cos(m * longitudes)
            self.basis[len(self.numbers) + index] = -along * np.sin(m * longitudes)

    def coefficients(self, names: Sequence[str], seed: int, days: float) -> Floats:
        """Return what the basis is multiplied with, (names, 2 waves), so that each field has a mean square near 1."""
        order = np.array([n for n, _ in self.numbers], float)
        around = np.array([m for _, m in self.numbers], float)
        travelled = 2.0 * np.pi * around * days / (20.0 - 3.0 * order)
        rows = []
        for name in names:
            random = np.random.default_rng([seed, zlib.crc32(name.encode())])
            size = random.normal(size=len(order)) / order
            size /= np.sqrt((size**2).sum())
            phase = random.uniform(0.0, 2.0 * np.pi, len(order)) - travelled
            rows.append(np.concatenate([size * np.cos(phase), size * np.sin(phase)]))
        return np.array(rows, np.float32).reshape(len(names), 2 * len(order))


def states(fields: Sequence[Field], grid: Grid, dates: NDArray[np.datetime64], seed: int) -> Iterator[Floats]:
    """Yield the fields of each date, (V, G) float32, physical units."""
    waves, num_points = Waves(grid), sum(grid.row_lengths)
    latitudes, longitudes = grid.latitudes, grid.longitudes
    fixed: dict[str, Floats] = {
        name: values.astype(np.float32) for name, values in of_place(latitudes, longitudes).items()
    }
    constants = [field for field in fields if field.constant and not field.computed]
    for field, row in zip(constants, waves.coefficients([f.name for f in constants], seed, 0.0), strict=True):
        fixed[field.name] = _sized(row @ waves.basis, field)
    moving = [field for field in fields if not field.constant and not field.computed]
    noise = np.empty(num_points, np.float32)
    for number, date in enumerate(dates):
        days = float((date - dates[0]) / np.timedelta64(86400, "s"))
        random = np.random.default_rng([seed, number])
        of_date: dict[str, Floats] = {
            name: np.broadcast_to(np.float32(value), num_points) for name, value in of_season(date).items()
        }
        of_date |= {name: value.astype(np.float32) for name, value in of_hour(date, latitudes, longitudes).items()}
        rows = dict(zip([f.name for f in moving], waves.coefficients([f.name for f in moving], seed, days),
                        strict=True))  # fmt: skip
        state = np.empty((len(fields), num_points), np.float32)
        for line, field in zip(state, fields, strict=True):
            if field.name not in rows:
                line[:] = fixed[field.name] if field.name in fixed else of_date[field.name]
                continue
            np.matmul(rows[field.name], waves.basis, out=line)
            random.standard_normal(dtype=np.float32, out=noise)
            noise *= np.float32(NOISE)
            line += noise
            _sized(line, field)
        yield state


def _sized(line: Floats, field: Field) -> Floats:
    """Give a field of mean 0 and mean square 1 its own size and bounds, in place."""
    line *= np.float32(field.stdev)
    line += np.float32(field.mean)
    if np.isfinite([field.low, field.high]).any():
        np.clip(line, np.float32(field.low), np.float32(field.high), out=line)
    return line
