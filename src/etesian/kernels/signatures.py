"""What a target can be given by name, and the dotted path that it has of its own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any


def named_parameters(target: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function that can be given by name; none where it has no signature.

    ``**kwargs`` are followed to where they go: those of a class to the constructors of its base classes, as long as
    each hands on ``**kwargs`` itself, those of a function to the class that it is annotated to return.
    """
    if not callable(target):
        return {}
    signatures = _signatures(target)
    found: dict[str, inspect.Parameter] = {}
    for signature in signatures:
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(name, parameter)
    return found


def takes_any_name(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Tell whether there is a ``**kwargs`` among the parameters."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _signatures(target: Any) -> list[inspect.Signature]:
    """Return the signature of a target, then those that its ``**kwargs`` can reach."""
    own = _signature(target)
    if own is None:
        return []
    found = [own]
    if not takes_any_name(own.parameters):
        return found
    if not inspect.isclass(target):
        returned = own.return_annotation
        return found + (_signatures(returned) if inspect.isclass(returned) else [])
    constructors = [base.__dict__["__init__"] for base in target.__mro__ if "__init__" in base.__dict__]
    for constructor in constructors[1:]:
        signature = _signature(constructor)
        if signature is None or constructor is object.__init__:
            break
        found.append(signature.replace(parameters=list(signature.parameters.values())[1:]))  # without self
        if not takes_any_name(signature.parameters):
            break
    return found


def _signature(target: Any) -> inspect.Signature | None:
    """Return a signature with the annotations evaluated where they can be."""
    try:
        return inspect.signature(target, eval_str=True)
    except Exception:  # an annotation may name what is imported for type checkers alone
        try:
            return inspect.signature(target)
        except (TypeError, ValueError):
            return None


def own_path(found: Any) -> str | None:
    """Return ``module.qualname`` if it leads back to this very object.

    A wrapper made with ``functools.wraps`` has the names of what it wraps, and a local class those of nothing.
    """
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    return f"{module}.{name}" if leads_to(module, name, found) else None


def leads_to(module: str, name: str, found: Any) -> bool:
    """Tell whether a name in a module, with dots where it is nested, is this very object."""
    try:
        reached: Any = importlib.import_module(module)
        for part in name.split("."):
            reached = getattr(reached, part)
    except (Exception, SystemExit):  # importing may raise anything
        return False
    return reached is found
