"""Roles of the variables, and where each stands in the data, the model's input and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from etesian.errors import Problem, UserError, did_you_mean
from etesian.schema.data import DataSettings


@dataclass(frozen=True)
class Variables:
    """The variables of a dataset and their roles.

    A variable is *forcing* (input only), *diagnostic* (output only) or else *prognostic* (input and output).
    Whatever the order in which roles are listed, every tuple and index list here follows the dataset's order.

    Attributes
    ----------
    names : tuple of str
        Every variable, in the dataset's order: the last axis of a batch.
    forcing : tuple of str
        Input only.
    diagnostic : tuple of str
        Output only.
    """

    names: tuple[str, ...]
    forcing: tuple[str, ...] = ()
    diagnostic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"a variable is named twice: {self.names}")
        if unknown := (set(self.forcing) | set(self.diagnostic)) - set(self.names):
            raise ValueError(f"roles of unknown variables: {sorted(unknown)}")
        if both := set(self.forcing) & set(self.diagnostic):
            raise ValueError(f"both forcing and diagnostic: {sorted(both)}")
        for role in ("forcing", "diagnostic"):
            members = set(getattr(self, role))
            object.__setattr__(self, role, tuple(name for name in self.names if name in members))

    @classmethod
    def from_roles(
        cls, names: Sequence[str], settings: DataSettings, metadata: Mapping[str, Mapping[str, Any]]
    ) -> Variables:
        """Give each variable the role that the config says.

        Parameters
        ----------
        names : sequence of str
            The dataset's variables, in its order.
        settings : DataSettings
            Section ``data``.
        metadata : mapping
            The dataset's ``variables_metadata``: by variable, read for ``forcing: computed`` only.

        Raises
        ------
        UserError
            For a name that is not in the dataset or stands in two roles, for ``computed`` where the metadata
            marks no variable, and where no output or no input is left.
        """
        problems: list[Problem] = []
        if settings.forcing == "computed":
            forcing = computed_forcings(names, metadata)
            if not forcing:
                problems.append(_nothing_computed())
        else:
            forcing = list(settings.forcing)
            problems += unknown_names(forcing, names, "data.forcing")
        problems += unknown_names(settings.diagnostic, names, "data.diagnostic")
        for name in sorted(set(forcing) & set(settings.diagnostic)):
            problems.append(
                Problem(
                    f"variable {name!r} is both forcing (input only) and diagnostic (output only)",
                    where="data.forcing, data.diagnostic",
                    mend="take it out of one list; out of both, it is input and output",
                )
            )
        if not problems:
            problems += _nothing_left(names, forcing, settings.diagnostic)
        if problems:
            raise UserError.collect(problems)
        return cls(tuple(names), tuple(forcing), tuple(settings.diagnostic))

    @cached_property
    def prognostic(self) -> tuple[str, ...]:
        """Names that are input and output."""
        return tuple(name for name in self.names if name not in self.forcing and name not in self.diagnostic)

    @cached_property
    def input(self) -> tuple[str, ...]:
        """Names of the model's input: prognostic and forcing."""
        return tuple(name for name in self.names if name not in self.diagnostic)

    @cached_property
    def output(self) -> tuple[str, ...]:
        """Names of the model's output: prognostic and diagnostic."""
        return tuple(name for name in self.names if name not in self.forcing)

    @property
    def data_input(self) -> list[int]:
        """Positions of the input in the data."""
        return _positions(self.input, self.names)

    @property
    def data_output(self) -> list[int]:
        """Positions of the output in the data."""
        return _positions(self.output, self.names)

    @property
    def data_forcing(self) -> list[int]:
        """Positions of the forcings in the data."""
        return _positions(self.forcing, self.names)

    @property
    def data_prognostic(self) -> list[int]:
        """Positions of the prognostic variables in the data."""
        return _positions(self.prognostic, self.names)

    @property
    def input_prognostic(self) -> list[int]:
        """Positions of the prognostic variables in the input."""
        return _positions(self.prognostic, self.input)

    @property
    def input_forcing(self) -> list[int]:
        """Positions of the forcings in the input."""
        return _positions(self.forcing, self.input)

    @property
    def output_prognostic(self) -> list[int]:
        """Positions of the prognostic variables in the output."""
        return _positions(self.prognostic, self.output)

    @property
    def output_diagnostic(self) -> list[int]:
        """Positions of the diagnostic variables in the output."""
        return _positions(self.diagnostic, self.output)


def computed_forcings(names: Sequence[str], metadata: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the variables that the metadata marks ``computed_forcing`` or ``constant_in_time``."""
    return [
        name
        for name in names
        if metadata.get(name, {}).get("computed_forcing") or metadata.get(name, {}).get("constant_in_time")
    ]


def unknown_names(given: Sequence[str], known: Sequence[str], where: str) -> list[Problem]:
    """Return a problem for each name that is not a variable of the dataset, or is given twice in one list."""
    problems = [
        Problem(
            f"variable {name!r} is not in the dataset",
            where=where,
            allowed=f"the dataset's variables: {', '.join(known)}",
            mend=did_you_mean(name, known),
        )
        for name in given
        if name not in known
    ]
    twice = sorted({name for name in given if list(given).count(name) > 1})
    return problems + [Problem(f"variable {name!r} is listed twice", where=where) for name in twice]


def _nothing_computed() -> Problem:
    return Problem(
        "data.forcing is 'computed', but the dataset's metadata marks no variable as "
        "computed_forcing or constant_in_time",
        where="data.forcing",
        allowed="'computed' with a dataset that has such metadata, or a list of variables",
        mend="list the forcings: 'data.forcing=[NAME,NAME]'",
    )


def _nothing_left(names: Sequence[str], forcing: Sequence[str], diagnostic: Sequence[str]) -> list[Problem]:
    problems = []
    if set(names) <= set(forcing):
        problems.append(
            Problem("every variable is a forcing, so the model has no output", where="data.forcing",
                    mend="take the variables to be forecast out of data.forcing")
        )  # fmt: skip
    if set(names) <= set(diagnostic):
        problems.append(
            Problem("every variable is diagnostic, so the model has no input", where="data.diagnostic",
                    mend="take the variables that are known at the start out of data.diagnostic")
        )  # fmt: skip
    return problems


def _positions(names: Sequence[str], among: Sequence[str]) -> list[int]:
    return [among.index(name) for name in names]
