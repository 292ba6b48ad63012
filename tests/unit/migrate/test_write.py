"""A converted config as text: what is laid over the options of the groups, and the report."""

from __future__ import annotations

from typing import Any

import pytest

from etesian.errors import UserError
from etesian.migrate.theirs import Told
from etesian.migrate.write import GROUPS, check_same, overlay, report, shown, summary, write_config

TOLD = [
    Told("carried", "a.b", 1, ("a.b",), "x.b", 1),
    Told("changed", "a.c", 5, ("a.c",), "x.c", [1, 2], "written|out"),
    Told("dropped", "a.d", "2 keys", ("a.d.e", "a.d.f"), why="not there"),
    Told("implied", "a.g", None, ("a.g",), why="always"),
]


@pytest.mark.parametrize(
    ("base", "wanted", "difference"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}, {}),
        ({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"d": 3}}),
        ({"a": [1, 2]}, {"a": []}, {"a": []}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_what_is_laid_over(base: Any, wanted: Any, difference: Any) -> None:
    assert overlay(base, wanted) == difference


def test_a_section_that_lacks_something_is_written_whole() -> None:
    base: dict[str, Any] = {name: {"own": name} for name in GROUPS}
    wanted = base | {"model": {"kind": "b"}, "task": {"own": "task", "more": 1}}
    choices = {"data": "d", "model": "m", "model/layer_kernels": "torch", "task": "t"}
    text = write_config(wanted, choices, lambda _: base)
    assert text == "defaults:\n- data: d\n- task: t\n- _self_\n\nmodel: {kind: b}\ntask: {more: 1}\n"


def test_a_text_that_means_something_else_is_refused() -> None:
    tree = {name: {} for name in GROUPS}
    check_same(tree, tree)
    with pytest.raises(UserError, match="section task"):
        check_same(tree | {"task": {"kind": "x"}}, tree)


def test_the_report_has_every_key() -> None:
    text = report(TOLD, "their/config.yaml", "mine.yaml")
    assert "1 carried over, 1 changed, 2 dropped, 1 so here without a key" in text
    assert "| `a.c` | 5 | `x.c` | [1, 2] | written\\|out |" in text
    assert "| `a.d.e` |  | not there |" in text
    assert "| `a.b` | `x.b` | 1 |" in text
    assert "| `a.g` | null | always |" in text
    assert summary([]) == "0 carried over, 0 changed, 0 dropped, 0 so here without a key"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), ("a: b", "'a: b'"), ({"a": [1]}, "{a: [1]}"), (0.5, "0.5")]
)
def test_values_are_shown_as_yaml(value: Any, text: str) -> None:
    assert shown(value) == text
