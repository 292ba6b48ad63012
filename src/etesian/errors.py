"""The one error a user ever sees: what is wrong, where, what is allowed, how to mend it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_CODE = 2
"""Exit status of a command that stops on a :class:`UserError`."""


@dataclass(frozen=True)
class Problem:
    """One thing a user has to mend.

    Attributes
    ----------
    what : str
        What is wrong, one sentence, naming the value that was given.
    where : str, optional
        The full config key (``training.max_epochs``) or the file.
    allowed : str, optional
        What may stand there.
    mend : str, optional
        The likely mend: the override, command or installation that helps.
    """

    what: str
    where: str | None = None
    allowed: str | None = None
    mend: str | None = None


class UserError(Exception):
    """A user's mistake. The command prints it without a traceback and exits with status 2.

    Parameters
    ----------
    what : str
        What is wrong.
    where, allowed, mend : str, optional
        See :class:`Problem`.

    Notes
    -----
    ``raise ... from cause`` keeps the cause for developers; whatever of it a user needs
    belongs in `what`.
    """

    def __init__(
        self, what: str, *, where: str | None = None, allowed: str | None = None, mend: str | None = None
    ) -> None:
        self.problems: tuple[Problem, ...] = (Problem(what, where, allowed, mend),)
        super().__init__(what)

    @classmethod
    def collect(cls, problems: Iterable[Problem]) -> UserError:
        """Make one error of several problems, so that one run reports them all."""
        problems = tuple(problems)
        if not problems:
            raise ValueError("an error needs at least one problem")
        error = cls(problems[0].what)
        error.problems = problems
        error.args = ("; ".join(problem.what for problem in problems),)
        return error

    def __reduce__(self) -> tuple:
        return (UserError.collect, (self.problems,))

    def __str__(self) -> str:
        return format_error(self)


def format_error(error: UserError) -> str:
    """Lay an error out for a terminal, one block a problem."""
    blocks = []
    for problem in error.problems:
        lines = [f"error: {problem.what}"]
        for label, text in (("where", problem.where), ("allowed", problem.allowed), ("mend", problem.mend)):
            if text:
                lines.append(f"  {label + ':':<9}{text}")
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the known names that `name` may have meant, the nearest first.

    `least` is how like a name has to be, of 1.

    Case, underscores and hyphens do not count, so ``layer_norm`` finds ``LayerNorm``; and where
    nothing is alike, the first part of a name does, so ``32`` finds ``32-true``.
    """
    known = [str(candidate) for candidate in known]
    plain = {candidate: _plain(candidate) for candidate in known}
    exact = [candidate for candidate in known if plain[candidate] == _plain(name)]
    if exact:
        return exact
    scored = [(difflib.SequenceMatcher(None, _plain(name), plain[candidate]).ratio(), candidate) for candidate in known]
    alike = [candidate for ratio, candidate in sorted(scored, key=lambda pair: -pair[0]) if ratio >= least][:3]
    return alike or [candidate for candidate in known if re.split("[-_]", candidate)[0] == name]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean 'x'?`` for a misspelt name, or None where nothing is near."""
    candidates = nearest(name, known)
    return f"did you mean {' or '.join(repr(candidate) for candidate in candidates)}?" if candidates else None


def shell_word(text: str) -> str:
    """Return an override or argument as a shell takes it: in quotes where it holds what a shell would act on."""
    return shlex.quote(text) if re.search(r"[^\w.,:/=+~@%-]", text) else text


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
