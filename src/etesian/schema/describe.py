"""Types and values of the config in words."""

from __future__ import annotations

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from etesian.schema.base import Section

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "text", bool: "true or false"}


def describe(field: FieldInfo) -> str:
    """Return what a field takes, such as ``a whole number, at least 1, or null``."""
    bounds = describe_bounds(field.metadata)
    parts = [part for part in _members(field.annotation) if part is not type(None)]
    null = ["null"] if type(None) in _members(field.annotation) else []
    words = [describe_type(part) for part in parts]
    if not bounds:
        return _join([*words, *null])
    return f"{_join(words)}, {bounds}{', or null' if null else ''}"


def describe_type(annotation: Any) -> str:
    """Return an annotation in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(arguments[0])
    if origin is Literal:
        return _join([show(value) for value in arguments])
    if origin in (Union, types.UnionType):
        return _join([describe_type(argument) for argument in arguments])
    if get_origin(arguments[-1] if arguments else None) is Annotated:  # entries with bounds of their own
        entry = get_args(arguments[-1])
        bounds = describe_bounds([bound for info in entry[1:] for bound in getattr(info, "metadata", [info])])
        plain = list[entry[0]] if origin is list else dict[arguments[0], entry[0]]  # type: ignore[valid-type]
        return f"{describe_type(plain)}, each {bounds}"
    if origin is list:
        return f"a list of {_PLURALS.get(arguments[0]) or _section_plural(arguments[0])}"
    if origin is dict:
        return f"a mapping of names to {_PLURALS.get(arguments[1]) or describe_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"a mapping with the keys {', '.join(keys_of(annotation))}" if keys_of(annotation) else "a mapping"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def describe_bounds(metadata: list[Any]) -> str:
    """Return the constraints of a field in words; empty where it has none."""
    words = []
    for bound in metadata:
        match bound:
            case annotated_types.Ge(ge=least):
                words.append(f"at least {least}")
            case annotated_types.Gt(gt=least):
                words.append(f"more than {least}")
            case annotated_types.Le(le=most):
                words.append(f"at most {most}")
            case annotated_types.Lt(lt=most):
                words.append(f"less than {most}")
            case annotated_types.MinLen(min_length=least):
                words.append(f"at least {least} entries")
            case annotated_types.MaxLen(max_length=most):
                words.append(f"at most {most} entries")
    if len(words) == 2 and words[0].replace("least", "most") == words[1]:
        return words[0].replace("at least", "exactly")
    return ", ".join(words)


def keys_of(section: type[Section]) -> list[str]:
    """Return the keys of a section as they are written in YAML."""
    return [field.alias or name for name, field in section.model_fields.items()]


def show(value: Any) -> str:
    """Return a value as one would write it in YAML, cut to 80 characters."""
    if isinstance(value, str):
        text = f"'{value}'"
    elif isinstance(value, float):
        text = repr(value)
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that an annotation holds (directly, in a list or in a mapping), or None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part))), None)


def is_list(field: FieldInfo) -> bool:
    """Tell whether a field holds a list."""
    return get_origin(field.annotation) is list


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _section_plural(annotation: Any) -> str:
    section = section_in(annotation)
    if section is None:
        return describe_type(annotation)
    keys = keys_of(section)
    return (
        f"mappings with the keys {', '.join(keys)}" if keys and "kind" not in keys else "mappings, each with its 'kind'"
    )


def _join(words: list[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"
