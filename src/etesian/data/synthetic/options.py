"""What a synthetic store holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    import numpy as np

    from etesian.data.synthetic.catalogue import Field


@dataclass(frozen=True)
class SyntheticStore:
    """Grid, variables and dates of a store.

    Attributes
    ----------
    grid : str
        See :func:`etesian.data.grids.named_grid`.
    prognostic, forcing, diagnostic : int
        Variables of each role.
    variables : tuple of str
        Their names, in place of the three numbers.
    dates : int
        Number of dates.
    start : str
        First date, such as ``2000-01-01`` or ``2000-01-01T06``.
    frequency : str
        Spacing of the dates, whole hours: ``6h``.
    seed : int
        Of the fields and their noise.
    """

    grid: str = "o96"
    prognostic: int = 80
    forcing: int = 28
    diagnostic: int = 5
    variables: tuple[str, ...] = ()
    dates: int = 60
    start: str = "2000-01-01"
    frequency: str = "6h"
    seed: int = 0

    def fields(self) -> tuple[Field, ...]:
        """Return the variables in the order of the store.

        Raises
        ------
        UserError
            A number is out of range, or a name is given twice.
        """
        from etesian.data.synthetic.catalogue import by_name, choose

        if self.variables:
            twice = sorted({name for name in self.variables if self.variables.count(name) > 1})
            if twice:
                raise UserError(f"--variables names {', '.join(twice)} twice", where="--variables")
            return by_name(self.variables)
        problems = [
            Problem(f"--{role} {getattr(self, role)} is below {least}", f"--{role}", f"{least} or more")
            for role, least in (("prognostic", 1), ("forcing", 0), ("diagnostic", 0))
            if getattr(self, role) < least
        ]
        if problems:
            raise UserError.collect(problems)
        return choose(self.prognostic, self.forcing, self.diagnostic)

    def times(self) -> np.ndarray:
        """Return the dates (T,), datetime64[s].

        Raises
        ------
        UserError
            For everything about dates and seed that makes no sense.
        """
        from etesian.data.timeline import first_date, regular_dates, step_hours

        problems: list[Problem] = []
        if self.dates < 2:
            problems.append(Problem(f"--dates {self.dates} is below 2", "--dates", "2 or more"))
        if self.seed < 0:
            problems.append(Problem(f"--seed {self.seed} is negative", "--seed", "0, 1, 2, ..."))
        try:
            start = first_date(self.start)
        except UserError as error:
            problems.extend(error.problems)
        try:
            hours = step_hours(self.frequency)
        except UserError as error:
            problems.extend(error.problems)
        if problems:
            raise UserError.collect(problems)
        return regular_dates(start, hours, self.dates)
