"""Checks of what is handed to :mod:`etesian.testing`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from etesian.errors import Problem, UserError

STARTS_ANEW: dict[str, Any] = {
    "run_id": None,
    "fork_run_id": None,
    "load_weights_only": False,
    "transfer_from": None,
    "transfer_allow": [],
}
"""What of the section ``training`` the fixture sets: each training starts anew."""

_REPLACED = {
    "system.input.dataset": "variables=[...] and Size(grid=...) say what the synthetic dataset holds",
    "system.input.graph": "the graph is built for the synthetic dataset",
    "system.hardware.accelerator": "device='cpu' or device='cuda'",
    **{f"training.{key}": "each training starts anew" for key in STARTS_ANEW},
    **{f"dataloader.{split}.{side}": "the periods are those of the synthetic dataset"
       for split in ("training", "validation", "test") for side in ("start", "end")},
}  # fmt: skip
"""Keys that the fixture sets, and what to do in place of an override."""


def refuse_graph_file(existing: object) -> None:
    """Refuse a graph file: it fits one dataset, and the synthetic one has another grid."""
    if existing is not None:
        raise UserError(
            "graph.existing uses a graph file, which does not fit the synthetic dataset",
            where="graph.existing",
            allowed="null",
            mend='overrides=["graph=multi_scale"]',
        )


def check_whole(value: object, where: str, least: int, allowed: str = "a whole number from {}") -> None:
    """Check that an argument is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise UserError(f"{where} is {value!r}", where=where, allowed=allowed.format(least))


def check_type(value: object, where: str, kind: type, allowed: str) -> None:
    """Check that an argument is of a class."""
    if not isinstance(value, kind):
        raise UserError(f"{where} is {value!r}", where=where, allowed=allowed)


def strings(values: object, where: str, example: str) -> list[str]:
    """Return a list of texts; one text is not taken for a list of its letters."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"{where} is {values!r}", where=where, allowed=f"a list of texts: {example}")
    values = list(values)
    for value in values:
        if not isinstance(value, str):
            raise UserError(f"{where} holds {value!r}", where=where, allowed=f"a list of texts: {example}")
    return values


def refuse_replaced(overrides: Sequence[str]) -> None:
    """Refuse overrides that would come to nothing, since the fixture sets their keys."""
    problems = []
    for override in overrides:
        given, _, value = override.lstrip("+~").partition("=")
        for key, mend in _REPLACED.items():
            inside = key.startswith(f"{given}.") and re.search(rf"\b{key.rpartition('.')[2]}\s*:", value)
            if given == key or inside:
                what = f"overrides: {override} comes to nothing, since the fixture sets {key}"
                problems.append(Problem(what, "overrides", "other keys", f"leave it out: {mend}"))
    if problems:
        raise UserError.collect(problems)
