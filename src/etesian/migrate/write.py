"""A converted config as a file that chooses options of the groups, and the report of what became of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from etesian.errors import UserError
from etesian.migrate.theirs import PACKAGE, Told

GROUPS = ("data", "dataloader", "diagnostics", "graph", "model", "task", "training", "system")
_KINDS = {"carried": "carried over", "changed": "changed", "dropped": "dropped", "implied": "so here without a key"}


def write_config(
    tree: Mapping[str, Any], choices: Mapping[str, str], compose: Callable[[Mapping[str, str]], Mapping[str, Any]]
) -> str:
    """Return the YAML of a config: a defaults list, and what differs from the options that it chooses.

    A section that can't be had by additions to the option of its group is written whole, without that option.

    Parameters
    ----------
    tree : mapping
        The whole config.
    choices : mapping
        Option of each group, nested groups after the one that they are in.
    compose : callable
        Returns the config of a choice of options.
    """
    base = compose(choices)
    kept, sections = dict(choices), {}
    for section in GROUPS:
        try:
            difference = overlay(base[section], tree[section])
        except _Whole:
            kept = {group: option for group, option in kept.items() if group.split("/")[0] != section}
            difference = tree[section]
        if difference:
            sections[section] = difference
    defaults = {"defaults": [*({group: option} for group, option in kept.items()), "_self_"]}
    body = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=118, default_flow_style=None)
    return yaml.safe_dump(defaults, sort_keys=False) + "\n" + body


class _Whole(Exception):
    """Something would have to be taken away from the base."""


def overlay(base: Any, wanted: Any) -> Any:
    """Return what has to be laid over `base` to get `wanted`, an empty mapping for nothing.

    A mapping laid over another leaves the keys that it does not name, so nothing can be taken away; that raises.
    """
    if not (isinstance(base, Mapping) and isinstance(wanted, Mapping)):
        return {} if base == wanted else wanted
    if set(base) - set(wanted):
        raise _Whole
    new = {key: value for key, value in wanted.items() if key not in base or base[key] != value}
    return {key: overlay(base[key], value) if key in base else value for key, value in new.items()}


def summary(told: Iterable[Told]) -> str:
    """Return the number of keys that were carried over, changed and dropped."""
    numbers = dict.fromkeys(_KINDS, 0)
    for entry in told:
        numbers[entry.kind] += len(entry.keys)
    return ", ".join(f"{number} {_KINDS[kind]}" for kind, number in numbers.items())


def report(told: list[Told], source: str, written: str) -> str:
    """Return the report as Markdown: a table each of what was changed, dropped and carried over."""
    lines = [f"# {written}", "", f"Made of {source}, a config of {PACKAGE}. Keys: {summary(told)}.", ""]
    for kind, heads in (
        ("changed", ("key there", "value there", "key here", "value here", "why")),
        ("dropped", ("key there", "value there", "why")),
        ("carried", ("key there", "key here", "value")),
        ("implied", ("key there", "value there", "what says it here")),
    ):
        rows = [row for entry in told if entry.kind == kind for row in _rows(entry)]
        if rows:
            lines += [f"## {_KINDS[kind].capitalize()}", "", _row(heads), _row(["---"] * len(heads))]
            lines += [*map(_row, rows), ""]
    return "\n".join(lines)


def _rows(entry: Told) -> list[list[str]]:
    if entry.kind == "changed":
        return [[f"`{entry.key}`", shown(entry.given), f"`{entry.ours}`", shown(entry.value), entry.why]]
    if entry.kind == "carried":
        return [[f"`{entry.key}`", f"`{entry.ours}`", shown(entry.value)]] if entry.keys else []
    if len(entry.keys) < 2:
        return [[f"`{entry.key}`", shown(entry.given), entry.why]]
    return [[f"`{key}`", "", entry.why] for key in entry.keys]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def shown(value: Any) -> str:
    """Return a value as the config has it, on one line."""
    if isinstance(value, Mapping) and set(value) >= {"kind", "weights"}:
        value = value["weights"]
    text = (
        yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
        if isinstance(value, dict | list | str | int | float | bool | None)
        else str(value)
    )
    return text.removesuffix("\n...\n").strip().replace("\n", " ")


def check_same(written: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Check that what was written is what was meant.

    Raises
    ------
    UserError
        If a section is another one.
    """
    for section in GROUPS:
        if written[section] != tree[section]:
            raise UserError(f"the section {section} can't be written as a config", where=section)
