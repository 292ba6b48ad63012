"""The kernels that are compared in a slot: those of the catalogue, and those that the experiment names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etesian.errors import UserError, did_you_mean
from etesian.kernels.catalog import KERNELS, CatalogEntry
from etesian.kernels.families import family_of
from etesian.kernels.interchange import arguments_for, interchangeable, settled
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, LayerKernels, resolve_kernels
from etesian.kernels.slots import SLOTS
from etesian.schema.model import ModelSettings


@dataclass(frozen=True)
class Candidate:
    """A kernel that may fill a slot here.

    Attributes
    ----------
    slot : str
        The slot.
    target : str
        Dotted path.
    arguments : dict
        What the config has to say beside it.
    chosen_by : tuple of str
        ``model`` or the components in which the experiment has chosen it.
    kernels : LayerKernels or None
        The experiment's kernels with this one in its slot; None where it can't be imported or does not take its
        arguments.
    record : KernelRecord or None
        What it resolved to.
    reason, mend : str
        Why it can't be used, and what helps.
    key : str
        Target and arguments, as text that tells kernels apart.
    compile : dict or None
        The experiment's own options of compilation, where it compiles this kernel.
    """

    slot: str
    target: str
    arguments: Mapping[str, Any]
    chosen_by: tuple[str, ...] = ()
    kernels: LayerKernels | None = None
    record: KernelRecord | None = None
    reason: str = ""
    mend: str = ""
    key: str = ""
    compile: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        """Target and arguments: ``torch.nn.LayerNorm(eps=1e-05)``."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.target}({arguments})" if arguments else self.target


def chosen_slots(names: Sequence[str] | None, settings: ModelSettings) -> list[str]:
    """Return the slots to compare: those that are named, or all that the model uses.

    Raises
    ------
    UserError
        For a name that is no slot.
    """
    if names is None:
        return [slot for slot in SLOTS if any(settings.uses(component, slot) for component in COMPONENTS)]
    for name in names:
        if name not in SLOTS:
            raise UserError(
                f"unknown layer kernel slot {name!r}", where="--slots", allowed=", ".join(SLOTS),
                mend=did_you_mean(name, SLOTS),
            )  # fmt: skip
    return list(dict.fromkeys(names))


def candidates(slot: str, settings: ModelSettings, kernels: ComponentKernels) -> list[Candidate]:
    """Return the experiment's own kernels of a slot, then those of the catalogue.

    Where a kernel of the catalogue is of the family that the experiment has chosen, it is given the experiment's
    constants, so that the two compute the same.
    """
    own: dict[str, Candidate] = {}
    for component in ("model", *COMPONENTS):
        record: KernelRecord = getattr(getattr(kernels, component), slot).record
        if record.component != component or (component == "model" and not _is_used(slot, kernels)):
            continue
        before = own.get(_key(record.target, record.arguments))
        users = (*before.chosen_by, component) if before else (component,)
        found = _resolved(slot, CatalogEntry(record.target, record.arguments), settings, users)
        own[found.key] = replace(found, compile=_compilation(record, settings))
    entries = [_with_constants(entry, found.record) for entry in KERNELS.get(slot, ()) for found in _first(own)]
    for entry in entries:
        found = _resolved(slot, entry, settings, ())
        if found.key not in own and not any(_is_same(candidate, found) for candidate in own.values()):
            own[found.key] = found
    return list(own.values())


def _compilation(record: KernelRecord, settings: ModelSettings) -> Mapping[str, Any] | None:
    """Return the options with which the experiment compiles a slot, by its ``_compile_`` or ``model.compile``."""
    if record.compile is not None:
        return record.compile
    entries = [entry for entry in settings.compile if entry.kernel == record.slot]
    return entries[0].options.model_dump(exclude_defaults=True) if entries else None


def brief(what: str) -> str:
    """Return what is wrong without Python's own words on a missing library, which add nothing."""
    return re.sub(r"(the library is missing \([^)]*\)).*", r"\1", what, flags=re.DOTALL)


def _first(own: Mapping[str, Candidate]) -> list[Candidate]:
    """Return the kernel whose constants the others get: that of the model, else the first."""
    ordered = sorted(own.values(), key=lambda candidate: "model" not in candidate.chosen_by)
    return ordered[:1]


def _is_used(slot: str, kernels: ComponentKernels) -> bool:
    return any(getattr(getattr(kernels, component), slot).record.component == "model" for component in COMPONENTS)


def _key(target: str, arguments: Mapping[str, Any]) -> str:
    return f"{target}{sorted(arguments.items())!r}"


def _is_same(own: Candidate, other: Candidate) -> bool:
    """Tell whether a kernel is the experiment's own with its defaults written out."""
    if own.target != other.target or own.record is None or other.record is None:
        return False
    return not interchangeable(own.record, other.record)


_WITH_EQUAL_CONSTANTS = ("layer_norm", "rms_norm", "linear")
"""Families whose kernels are given the experiment's constants; kinds of other families differ by a constant."""


def _with_constants(entry: CatalogEntry, chosen: KernelRecord | None) -> CatalogEntry:
    """Give an entry the constants of the experiment's kernel, where both are of one family and it can have them."""
    if chosen is None or chosen.family not in _WITH_EQUAL_CONSTANTS or family_of(entry.target) != chosen.family:
        return entry
    try:
        arguments, reasons = arguments_for(entry.target, chosen.family, settled(chosen))
    except (ImportError, AttributeError):  # it is reported as missing with the constants that it has
        return entry
    return entry if reasons else CatalogEntry(entry.target, arguments)


def _resolved(slot: str, entry: CatalogEntry, settings: ModelSettings, users: tuple[str, ...]) -> Candidate:
    key = _key(entry.target, entry.arguments)
    mapping = dict(settings.layer_kernels) | {slot: {"_target_": entry.target, **entry.arguments}}
    cleared = {
        name: getattr(settings, name).model_copy(update={"layer_kernels": {}}) for name in COMPONENTS
    }  # the slot of the model is what is looked at
    changed = settings.model_copy(update={"layer_kernels": mapping, **cleared})
    try:
        resolved = resolve_kernels(changed, preset=None, overrides=[])
    except UserError as error:
        problem = error.problems[0]
        reason = brief(problem.what).removeprefix(f"slot {slot}: ").removeprefix(f"{entry.target} can't be imported: ")
        return Candidate(slot, entry.target, entry.arguments, users, None, None, reason, problem.mend or "", key)
    record = getattr(resolved.model, slot).record
    return Candidate(slot, entry.target, entry.arguments, users, resolved.model, record, key=key)
