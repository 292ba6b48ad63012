"""The table of families in docs/checkpoints.md is that of the program."""

from __future__ import annotations

import re

import pytest
from doc_pages import REPOSITORY

from etesian.kernels.constants import FAMILIES


def rows() -> dict[str, list[str]]:
    """Return the cells of the row of each family."""
    table = (REPOSITORY / "docs" / "checkpoints.md").read_text().partition("## Families")[2].partition("## ")[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("| `") else []
        for name in re.findall(r"`(\w+)`", cells[0]) if cells else []:
            found[name] = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return found


def test_every_family_is_there() -> None:
    assert set(rows()) == set(FAMILIES)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_family_is_told_right(name: str) -> None:
    _, formula, constants, parameters, plain = rows()[name]
    family = FAMILIES[name]
    assert [part for part in constants.split(", ") if part] == list(family.constants)
    stems = list(dict.fromkeys(parameter.partition(".")[0] for parameter in family.parameters))
    assert [part for part in parameters.split(", ") if part] == stems
    assert str(family.plain).startswith(plain.strip("`"))
    told_elsewhere = formula.startswith("[here]") or name in ("glu", "swiglu", "reglu", "geglu")
    assert told_elsewhere or formula == family.formula
