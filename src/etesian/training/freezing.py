"""Parts of a model that are not trained, by the names of their modules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import nn

from etesian.errors import Problem, UserError, did_you_mean

WHERE = "training.freeze"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters of modules out of the training: no gradient, no weight decay, no state of the optimiser.

    Parameters
    ----------
    model : nn.Module
        The model.
    patterns : sequence of str
        Names of its modules, such as ``encoder``; ``*``, ``?`` and ``[01]`` stand for what they do in file names.

    Raises
    ------
    UserError
        If a pattern names no module, or one without parameters, or nothing is left to train.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    with_parameters = [name for name, module in modules.items() if any(True for _ in module.parameters())]
    problems = []
    for pattern in patterns:
        named = [name for name in with_parameters if fnmatchcase(name, pattern)]
        for name in named:
            modules[name].requires_grad_(requires_grad=False)
        if not named:
            problems.append(_nothing_named(pattern, modules, with_parameters))
    if problems:
        raise UserError.collect(problems)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            f"{WHERE} names every parameter of the model: nothing is left to train",
            where=WHERE,
            allowed="modules that leave others to train",
        )


def _nothing_named(pattern: str, modules: Mapping[str, nn.Module], with_parameters: Sequence[str]) -> Problem:
    parts = ", ".join(name for name in with_parameters if "." not in name)
    has_none = any(fnmatchcase(name, pattern) for name in modules)
    what = f"the module {pattern!r} has no parameters" if has_none else f"the model has no module {pattern!r}"
    return Problem(what, WHERE, f"{parts}, or modules in them", did_you_mean(pattern, with_parameters))


def describe_frozen(model: nn.Module, patterns: Sequence[str]) -> str:
    """Say in a line what is frozen, and how many parameters."""
    parameters = list(model.parameters())
    frozen = sum(parameter.numel() for parameter in parameters if not parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters)
    return f"frozen: {', '.join(patterns)} ({frozen:,} of {total:,} parameters)"


def check_same_frozen(path: Path, checkpoint: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Check that a run goes on with the same parts frozen, since its optimiser has a state for the others alone.

    Raises
    ------
    UserError
        If not.
    """
    before = checkpoint["etesian"]["config"]["training"].get("freeze", [])
    if sorted(before) != sorted(patterns):
        raise UserError(
            f"{path} was trained with {WHERE}=[{', '.join(before)}], this config has [{', '.join(patterns)}]: the "
            "state of its optimiser is for other parameters",
            where=WHERE,
            allowed=f"[{', '.join(before)}], or another in a new run with training.load_weights_only=true",
            mend=f"'{WHERE}={json.dumps(before)}'",
        )
