"""What a synthetic store holds."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etesian.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from etesian.data.synthetic.catalogue import Field

MOST_VARIABLES = 10_000
"""Variables of a store."""


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

    def num_variables(self) -> int:
        """Return how many variables there are, before any is made.

        Raises
        ------
        UserError
            A number is out of range, or a name is none or is given twice.
        """
        if self.variables:
            check_names(self.variables, "--variables")
            return len(self.variables)
        problems = []
        for role, least in (("prognostic", 1), ("forcing", 0), ("diagnostic", 0)):
            number, allowed = getattr(self, role), f"{least} to {MOST_VARIABLES:,}"
            if number < least:
                problems.append(Problem(f"--{role} {number} is below {least}", f"--{role}", allowed))
            elif number > MOST_VARIABLES:
                problems.append(Problem(f"--{role} is above {MOST_VARIABLES:,}", f"--{role}", allowed))
        total = self.prognostic + self.forcing + self.diagnostic
        if not problems and total > MOST_VARIABLES:
            options = "--prognostic, --forcing, --diagnostic"
            what = f"{options} come to {total:,} variables"
            problems.append(Problem(what, options, f"up to {MOST_VARIABLES:,} together"))
        if problems:
            raise UserError.collect(problems)
        return total

    def fields(self) -> tuple[Field, ...]:
        """Return the variables in the order of the store.

        Raises
        ------
        UserError
            As :meth:`num_variables`.
        """
        from etesian.data.synthetic.catalogue import by_name, choose

        self.num_variables()
        if self.variables:
            return by_name(self.variables)
        return choose(self.prognostic, self.forcing, self.diagnostic)

    def times(self) -> np.ndarray:
        """Return the dates (T,), datetime64[s].

        Raises
        ------
        UserError
            For everything about dates and seed that makes no sense.
        """
        from etesian.data.timeline import beyond_calendar, first_date, regular_dates, step_hours

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
        if not problems:
            problems.extend(beyond_calendar(start, hours, self.dates, "--dates"))
        if problems:
            raise UserError.collect(problems)
        return regular_dates(start, hours, self.dates)


def check_names(names: Sequence[str], where: str) -> None:
    """Check the names of variables.

    Parameters
    ----------
    names : sequence of str
        The names.
    where : str
        The option or argument that they were given to.

    Raises
    ------
    UserError
        There is none or far too many, one is no name, or one is given twice.
    """
    allowed = "names of letters, digits, '_', '-' and '.', each once"
    if not 1 <= len(names) <= MOST_VARIABLES:
        raise UserError(f"{where} has {len(names):,} names", where=where, allowed=f"1 to {MOST_VARIABLES:,} names")
    problems = []
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            parts = re.findall(r"[\w.-]+", name)
            mend = f"a name each: {' '.join(parts)}" if len(parts) > 1 else None
            problems.append(Problem(f"{where}: {name!r} is no name of a variable", where, allowed, mend))
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        problems.append(Problem(f"{where} names {', '.join(twice)} twice", where, allowed))
    if problems:
        raise UserError.collect(problems)
