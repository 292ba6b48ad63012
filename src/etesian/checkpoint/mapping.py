"""Whether weights may go on under other layer kernels than those that made them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from etesian.errors import Problem, UserError
from etesian.kernels.interchange import Difference, differences, interchangeable, key_of, named, written_out
from etesian.kernels.parity import Parity, check_parity
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import ComponentKernels
from etesian.schema.model import ModelSettings

KEY = "training.allow_other_kernels"
"""Config key that allows it, within a family."""


def check_mapping(
    source: Path,
    stored: Sequence[KernelRecord],
    kernels: ComponentKernels,
    settings: ModelSettings,
    device: torch.device,
    *,
    allowed: bool,
) -> list[Parity]:
    """Compare the kernels of a checkpoint with those of a config.

    Parameters
    ----------
    source : Path
        The checkpoint, for messages.
    stored : sequence of KernelRecord
        Its kernels.
    kernels : ComponentKernels
        Those of the config.
    settings : ModelSettings
        Section ``model`` of the config.
    device : torch.device
        Where other kernels are compared.
    allowed : bool
        ``training.allow_other_kernels``.

    Returns
    -------
    list of Parity
        One for each slot that is filled otherwise; empty where none is.

    Raises
    ------
    UserError
        Naming each slot that differs: if that is not allowed, if the two kernels are not of one family with the same
        constants, or if they do not compute the same.
    """
    changed = differences(stored, kernels.records, settings)
    if not changed:
        return []
    refuse(source, changed, allowed=allowed)
    return check_parity(changed, kernels, settings, device)


def refuse(source: Path, changed: Sequence[Difference], *, allowed: bool = True) -> None:
    """Raise an error for the slots whose kernels are not interchangeable, and unless `allowed` for the others too."""
    problems = []
    for difference in changed:
        where, old = key_of(difference), difference.old
        reasons = interchangeable(old, difference.new)
        back = _way_back(difference)
        what = f"the weights of {source} were made by {named(old)} in {_place(difference)}; this is"
        if reasons:
            what = f"{what} {named(difference.new)}, which can't take its place: {'; '.join(reasons)}"
            problems.append(Problem(what, where, f"a kernel of family {old.family!r} with the same constants", back))
        elif not allowed:
            what = f"{what} {named(difference.new)}, of the same family {old.family!r} with the same constants"
            problems.append(Problem(what, where, named(old), f"{KEY}=true to go on all the same, or {back}"))
    if problems:
        raise UserError.collect(problems)


def _place(difference: Difference) -> str:
    owner = "the model" if difference.component == "model" else f"the {difference.component}"
    return f"slot {difference.slot} of {owner}"


def _way_back(difference: Difference) -> str:
    """Return the overrides, as a shell takes them, that bring the old kernel back with its constants.

    A mapping is merged into the one that stands there: what it leaves out would stay, so all constants are written out,
    and arguments of the new kernel that the old one has not are deleted.
    """
    where, new = key_of(difference), difference.new
    entry = {"_target_": difference.old.target, **written_out(difference.old)}
    merged = new.component == difference.component and new.origin != "default"
    deleted = [f"~{where}.{name}" for name in new.arguments if name not in entry] if merged else []
    mapping = "{" + ",".join(f"{name}:{_value(value)}" for name, value in entry.items()) + "}"
    sign = "" if difference.component == "model" else "++"
    return " ".join(shlex.quote(override) for override in (*deleted, f"{sign}{where}={mapping}"))


def _value(value: Any) -> str:
    """Return a value in the grammar of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_value(item)}" for name, item in value.items()) + "}"
    if not isinstance(value, str):
        return str(value)
    plain = re.fullmatch(r"[A-Za-z_][\w.]*", value) and value.lower() not in ("true", "false", "null", "nan", "inf")
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def library_changes(stored: Sequence[KernelRecord], now: Sequence[KernelRecord]) -> list[str]:
    """Return the libraries of the kernels that are here in another version: ``liger-kernel 0.6.0 -> 0.8.5``."""
    before = {record.library: record.version for record in stored}
    here = {record.library: record.version for record in now}
    return [
        f"{library} {version} -> {here[library]}"
        for library, version in before.items()
        if library in here and here[library] != version
    ]
