"""Whether a target takes the arguments that the config and the model give it; nothing is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etesian.errors import Problem, did_you_mean, shell_word
from etesian.kernels.signatures import named_parameters, takes_any_name
from etesian.kernels.slots import Slot
from etesian.kernels.values import check_values


def check_arguments(
    target: Any,
    path: str,
    slot: Slot,
    arguments: Mapping[str, Any],
    *,
    where: str,
    overrides: Sequence[str],
    preset: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Return what is wrong with the arguments of one kernel.

    Parameters
    ----------
    target : class or function
        What `path` names.
    path : str
        The dotted path of the config.
    slot : Slot
        Says what the model passes, by position and by name.
    arguments : mapping
        What the config passes.
    where : str
        Config key of the kernel, such as ``model.layer_kernels.LayerNorm``.
    overrides : sequence of str
        Overrides of the command line, to tell what was left behind under a changed ``_target_``.
    preset : mapping, optional
        What the file of the preset has for the slot, to tell the same where a config of the user's changed it.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as cause:
        return [Problem(f"slot {slot.name}: {path} has no signature that can be checked: {cause}", where)]
    parameters = signature.parameters
    taken_by_position = _positional_names(signature, len(slot.positional))
    by_name = named_parameters(target)
    free = [name for name in by_name if name not in taken_by_position]
    shown = f"{path}{without_annotations(signature)}"

    if misplaced := [name for name in taken_by_position if _is_no_size(parameters[name])]:
        given = slot.positional[taken_by_position.index(misplaced[0])]
        what = (
            f"slot {slot.name}: {path} can't be built as the model builds it, {slot.construction}: "
            f"its parameter {misplaced[0]!r} would be given {given}"
        )
        return [Problem(what, where, shown, f"let its constructor take {', '.join(slot.positional)} first")]
    problems = []
    for name, value in arguments.items():
        key = f"{where}.{name}"
        if name in taken_by_position:
            what = f"slot {slot.name}: the model itself passes {name!r} of {path}, by position"
            problems.append(Problem(what, key, shown, f"~{key}"))
        elif name in slot.keywords and name not in slot.settable:
            what = f"slot {slot.name}: the model itself passes {name!r} to {path}"
            problems.append(Problem(what, key, shown, f"~{key}"))
        elif name not in free:
            if is_leftover(where, name, overrides):
                before = f"the kernel that was configured before {where}._target_ was overridden"
                problems.append(_left_over(slot, name, value, before, path, key, shown))
            elif preset and preset.get("_target_") != path and name in preset and preset[name] == value:
                before = f"{preset.get('_target_')} of the preset"
                problems.append(_left_over(slot, name, value, before, path, key, shown))
            else:
                swallowed = "; its **kwargs would swallow it" if takes_any_name(parameters) else ""
                what = f"slot {slot.name}: {path} does not take {name!r}{swallowed}"
                meant = did_you_mean(name, free) or special_key(where, name, value)
                problems.append(Problem(what, key, shown, meant))
    problems.extend(check_values({name: by_name[name] for name in free}, path, slot.name, arguments, where=where))
    if not problems:
        problems.extend(_check_binding(signature, path, slot, arguments, where=where, shown=shown))
    return problems


def special_key(where: str, name: str, value: Any) -> str | None:
    """Return the mend of ``target`` for ``_target_`` and the like, or None."""
    known = {key.strip("_"): key for key in ("_target_", "_partial_", "_compile_")}
    found = known.get(name.strip("_").lower())
    return None if found is None else f"did you mean {found!r}? " + shell_word(f"{where}.{found}={value}")


def _left_over(slot: Slot, name: str, value: Any, before: str, path: str, key: str, shown: str) -> Problem:
    what = f"slot {slot.name}: {name}={value!r} is left over from {before}; {path} does not take it"
    return Problem(what, key, shown, f"add the override ~{key}")


def is_leftover(where: str, argument: str, overrides: Sequence[str]) -> bool:
    """Tell whether the overrides changed the target at `where` without having set `argument`."""
    target_changed = argument_set = False
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key == where:  # where={_target_: ..., argument: ...}, merged into what stood there
            target_changed |= _names_key(value, "_target_")
            argument_set |= _names_key(value, argument)
        target_changed |= key == f"{where}._target_"
        argument_set |= key == f"{where}.{argument}"
    return target_changed and not argument_set


def _names_key(value: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}['\"]?\s*:", value) is not None


def _positional_names(signature: inspect.Signature, count: int) -> list[str]:
    names = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return names[:count]


def _is_no_size(parameter: inspect.Parameter) -> bool:
    """Tell whether a parameter can't be meant for a number of features, channels or heads, which is all slots pass."""
    return isinstance(parameter.default, bool | float | str) or parameter.name in ("eps", "epsilon", "bias")


def without_annotations(signature: inspect.Signature) -> str:
    """Return the signature without annotations, which say little and fill the screen."""
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _check_binding(
    signature: inspect.Signature, path: str, slot: Slot, arguments: Mapping[str, Any], *, where: str, shown: str
) -> list[Problem]:
    keywords = dict.fromkeys(slot.keywords) | dict(arguments)
    try:
        signature.bind(*slot.positional, **keywords)
    except TypeError as cause:
        what = f"slot {slot.name}: {path} can't be built as the model builds it, {slot.construction}: {cause}"
        return [Problem(what, where, shown)]
    return []


def in_place(target: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments, set or left at their defaults, that make a kernel work in place."""
    settled = defaults_of(target) | dict(arguments)
    return [name for name in ("inplace", "in_place") if settled.get(name) is True]


def defaults_of(target: Any) -> dict[str, Any]:
    """Return what a class or function can be given by name, with the defaults; none where it is not there."""
    return {name: parameter.default for name, parameter in named_parameters(target).items()}
