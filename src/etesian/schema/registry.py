"""Kinds: sections whose keys depend on their ``kind``.

A model, loss or scaler declares its own section beside its code and registers it here under the name that the
config uses. Adding a kind therefore touches one file of code and one YAML. A kind of model, encoder, processor or
decoder whose name has a dot is the import path of the module that registers it, such as one of the user's.
"""

from __future__ import annotations

import importlib
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


class KindError(Exception):
    """A module that is named as a kind can't be imported, or registers none of that name."""


def load_kind(group: str, kind: str) -> None:
    """Import the module of a kind whose name has a dot, where it is not registered yet; others are left alone.

    Raises
    ------
    KindError
        With the reason.
    """
    if group not in ("model", "encoder", "processor", "decoder") or "." not in kind or kind in _KINDS[group]:
        return
    try:
        importlib.import_module(kind)
    except (Exception, SystemExit) as cause:  # a module of the user's may raise anything
        raise KindError(f"the module {kind} can't be imported: {type(cause).__name__}: {cause}") from cause
    if kind not in _KINDS[group]:
        raise KindError(f"the module {kind} registers no {group} of that name: @register({group!r}, {kind!r})")
