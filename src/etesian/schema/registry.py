"""Kinds: sections whose keys depend on their ``kind``.

A model, loss or scaler declares its own section beside its code and registers it here under the name that the
config uses. Adding a kind therefore touches one file of code and one YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from etesian.schema.base import Section

S = TypeVar("S", bound=type[Section])

GROUPS = ("model", "encoder", "processor", "decoder", "loss", "scaler", "bounding", "optimizer")

_KINDS: dict[str, dict[str, type[Section]]] = {group: {} for group in GROUPS}


def register(group: str, kind: str) -> Callable[[S], S]:
    """Register the decorated section as ``kind`` of ``group``.

    Parameters
    ----------
    group : str
        What it is a kind of: one of :data:`GROUPS`.
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
    """Return the registered sections of a group by kind."""
    return dict(_KINDS[group])
