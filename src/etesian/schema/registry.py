"""Kinds: sections whose keys depend on their ``kind``.

A model, loss or scaler declares its own section beside its code and registers it here under the name that the
config uses. Adding a kind therefore touches one file of code and one YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from etesian.schema.base import Section

S = TypeVar("S", bound=type[Section])

_KINDS: dict[str, dict[str, type[Section]]] = {"model": {}, "loss": {}, "scaler": {}, "bounding": {}, "optimizer": {}}


def register(group: str, kind: str) -> Callable[[S], S]:
    """Register the decorated section as ``kind`` of ``group``.

    Parameters
    ----------
    group : {"model", "loss", "scaler", "bounding", "optimizer"}
        What it is a kind of.
    kind : str
        The value of the key ``kind`` in the config.

    Raises
    ------
    ValueError
        If another section holds that name.
    """

    def decorate(section: S) -> S:
        held = _KINDS[group].get(kind)
        if held is not None and held.__qualname__ != section.__qualname__:
            raise ValueError(f"{group} kind {kind!r} is registered by {held.__qualname__} already")
        _KINDS[group][kind] = section
        return section

    return decorate


def kinds(group: str) -> dict[str, type[Section]]:
    """Return the registered sections of a group by kind; ``single loss`` are the losses that no combination is."""
    if group == "single loss":
        return {kind: section for kind, section in _KINDS["loss"].items() if kind != "combined"}
    return dict(_KINDS[group])
