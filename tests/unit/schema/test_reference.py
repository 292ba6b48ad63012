"""The reference of the config: complete, and the committed page is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian.commands.common import register_kinds
from etesian.schema.reference import field_docs, render
from etesian.schema.training import TrainingSettings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


@pytest.fixture(scope="module")
def page() -> str:
    register_kinds()
    return render()


def test_the_committed_page_is_current(page: str) -> None:
    assert PAGE.read_text() == page, "run `anemoi-training config reference > docs/reference/config.md`"


@pytest.mark.parametrize(
    "heading",
    ["## training", "## model, kind `graphtransformer`", "### model.encoder, kind `gnn`", "### model.residual"],
)
def test_sections(page: str, heading: str) -> None:
    assert page.count(f"\n{heading}\n") == 1


def test_a_row(page: str) -> None:
    row = "| `max_epochs` | a whole number, at least 1, or null | `null` |"
    assert row in page


def test_meanings_come_from_the_docstrings_of_the_fields() -> None:
    assert field_docs(TrainingSettings)["load_weights_only"].startswith("With ``fork_run_id``")


def test_every_key_has_a_meaning(page: str) -> None:
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |") and not row.startswith("| `kind`")] == []
