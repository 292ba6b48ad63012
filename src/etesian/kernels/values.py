"""Whether the values of a kernel's arguments are of the kind that its signature asks for.

Most constructors take anything: to ``torch.nn.Linear``, ``bias="no"`` is true.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from etesian.errors import Problem

_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "null",
}
_FLAGS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def check_values(
    parameters: Mapping[str, inspect.Parameter], path: str, slot: str, arguments: Mapping[str, Any], *, where: str
) -> list[Problem]:
    """Return a problem for each value of another kind than its parameter has.

    The kind is that of the annotation, where it is made of ``bool``, ``int``, ``float``, ``str`` and None alone, and
    that of the default. Where there is neither, such as for a default of None, any value will do.

    Parameters
    ----------
    parameters : mapping
        What the kernel can be given by name.
    path : str
        The kernel's dotted path.
    slot : str
        The slot that it fills.
    arguments : mapping
        What the config passes.
    where : str
        Config key of the slot.
    """
    problems = []
    for name, value in arguments.items():
        kinds = _kinds(parameters[name]) if name in parameters else None
        if kinds is None or _fits(value, kinds):
            continue
        what = f"slot {slot}: {name}={value!r} of {path} is {_kind_of(value)}"
        allowed = " or ".join(words for kind, words in _WORDS.items() if kind in kinds)
        problems.append(Problem(what, f"{where}.{name}", allowed, _mend(f"{where}.{name}", value, kinds)))
    return problems


def _kinds(parameter: inspect.Parameter) -> set[type] | None:
    """Return the types that a parameter takes; None where nothing tells."""
    default = parameter.default
    of_default = {type(default)} & set(_WORDS) if default is not parameter.empty else set()
    annotation = parameter.annotation
    if annotation is parameter.empty or isinstance(annotation, str):  # an annotation that could not be evaluated
        return of_default - {type(None)} or None
    of_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    named = set(typing.get_args(annotation)) if of_union else {annotation}
    return named | of_default if named <= set(_WORDS) else None


def _fits(value: Any, kinds: set[type]) -> bool:
    return type(value) in kinds or (float in kinds and type(value) is int)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "a flag"
    return _WORDS.get(type(value), f"a {type(value).__name__}")


def _mend(key: str, value: Any, kinds: set[type]) -> str | None:
    """Return the override that says what a string was most likely meant to say."""
    if not isinstance(value, str):
        return None
    if bool in kinds and value.lower() in _FLAGS:
        return f"{key}={_FLAGS[value.lower()]}"
    if kinds & {int, float}:
        try:
            float(value)
        except ValueError:
            return None
        return f"{key}={value}" if float in kinds or value.isdigit() else None
    return None
