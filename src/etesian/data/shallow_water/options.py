"""What to simulate and where to write it out: cheap to import, so that a command can list its options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    import numpy as np

GRIDS = ("gaussian", "regular", "regular-poles", "octahedral")
"""Points of a store; see :func:`etesian.data.shallow_water.grids.make_grid`."""

LARGEST_TRUNCATION = 511
"""Wavenumber beyond which the solver's tables fill gigabytes."""

LONGEST_SPINUP = 36_525
"""Days, a century."""


@dataclass(frozen=True)
class Simulation:
    """What is simulated and where it is written out.

    Attributes
    ----------
    truncation : int
        Largest total wavenumber of the solver.
    grid : str
        One of :data:`GRIDS`.
    degrees : float or None
        Spacing of a regular grid, which is 5 when None.
    start : str
        First date, such as ``2000-01-01`` or ``2000-01-01T06``.
    days : float
        Length, spin-up not included.
    frequency : str
        Spacing of the dates, whole hours: ``6h``.
    seed : int
        Of the mountains, the first state and the stirring.
    spinup_days : float
        Simulated before `start` and not written.
    """

    truncation: int = 42
    grid: str = "gaussian"
    degrees: float | None = None
    start: str = "2000-01-01"
    days: float = 60.0
    frequency: str = "6h"
    seed: int = 0
    spinup_days: float = 20.0

    def step_hours(self) -> int:
        """Return the spacing of the dates in hours.

        Raises
        ------
        UserError
            It is not a whole number of hours.
        """
        from etesian.data.timeline import step_hours

        return step_hours(self.frequency)

    def dates(self) -> np.ndarray:
        """Return the dates (T,), datetime64[s].

        Raises
        ------
        UserError
            For everything in the settings that makes no sense.
        """
        from etesian.data.timeline import MOST_DATES, beyond_calendar, first_date, regular_dates

        problems: list[Problem] = []
        if self.truncation < 10:
            problems.append(Problem(f"--truncation {self.truncation} is too coarse for the flow's jets", "--truncation",
                                    "10 or more; 21, 42, 63, 85, 106 are usual"))  # fmt: skip
        elif self.truncation > LARGEST_TRUNCATION:
            problems.append(Problem(f"--truncation is above {LARGEST_TRUNCATION}", "--truncation",
                                    f"10 to {LARGEST_TRUNCATION}; 21, 42, 63, 85, 106 are usual"))  # fmt: skip
        if self.seed < 0:
            problems.append(Problem(f"--seed {self.seed} is negative", "--seed", "0, 1, 2, ..."))
        if not 0.0 <= self.spinup_days <= LONGEST_SPINUP:
            what = "is negative" if self.spinup_days < 0.0 else f"is not a number up to {LONGEST_SPINUP:,}"
            problems.append(Problem(f"--spinup-days {self.spinup_days:g} {what}", "--spinup-days",
                                    f"0 to {LONGEST_SPINUP:,}"))  # fmt: skip
        try:
            start = first_date(self.start)
        except UserError as error:
            problems.extend(error.problems)
        hours = self.step_hours()
        number = math.floor(min(self.days * 24.0 / hours + 1e-9, MOST_DATES + 1)) if self.days > 0.0 else 0
        if number < 2:
            problems.append(Problem(f"--days {self.days:g} holds fewer than two dates {self.frequency} apart", "--days",
                                    f"{2 * hours / 24:g} or more"))  # fmt: skip
        if not problems:
            problems.extend(beyond_calendar(start, hours, number, "--days"))
        if problems:
            raise UserError.collect(problems)
        return regular_dates(start, hours, number)
