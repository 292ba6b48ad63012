"""Overrides that mix up groups, which are named with ``/``, and keys, which are named with ``.``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etesian.errors import Problem, nearest, shell_word
from etesian.presets import KERNEL_PRESETS


def group_slip(key: str, value: Any, options_of: Callable[[str], Sequence[str]]) -> Problem | None:
    """Return the problem of a key that is given the name of a group's option, or None.

    Parameters
    ----------
    key : str
        The key as it was typed, such as ``model.layer_kernels``.
    value : Any
        What it is given; text that is no interpolation may be an option.
    options_of : callable
        Returns the options of a group, none where there is no such group.
    """
    if "." not in key or not isinstance(value, str) or value.startswith("${"):
        return None
    group = key.replace(".", "/")
    if options := list(options_of(group)):
        choice = group
    elif key.startswith("model.") and key.endswith(".layer_kernels"):  # of a component
        choice, group, options = f"+{KERNEL_PRESETS}@{key}", KERNEL_PRESETS, list(options_of(KERNEL_PRESETS))
    else:
        return None
    near = [value] if value in options else nearest(value, options)
    known = near or options[:1]
    mend = f"did you mean {' or '.join(shell_word(f'{choice}={option}') for option in known)}?"
    what = f"{key}={value}: {key!r} is a section; a file of the group {group!r} is chosen with '/'"
    return Problem(what, key, ", ".join(options), mend)


def dotted_key(line: str) -> str | None:
    """Return the mend of a line that Hydra can't read since its key has both ``/`` and ``.``, or None."""
    key, found, value = line.partition("=")
    if not (found and "/" in key and "." in key and "@" not in key):
        return None
    return f"did you mean {shell_word('='.join([key.replace('/', '.'), value]))}?"
