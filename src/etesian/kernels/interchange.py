"""Which kernel may take another's place, and what differs between two mappings."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etesian.kernels.constants import PLAIN, UNKNOWN, Argument
from etesian.kernels.families import GATED_MLPS, constants_of, family_named, readers_of
from etesian.kernels.record import KernelRecord, config_key
from etesian.schema.model import ModelSettings

COMPONENTS = ("encoder", "processor", "decoder")


@dataclass(frozen=True)
class Difference:
    """A slot that two mappings fill otherwise.

    Attributes
    ----------
    component : str
        ``model`` where all components that use the slot differ alike, and now have it of the model; else one of them.
    slot : str
        The slot.
    old, new : KernelRecord
        Its two kernels.
    """

    component: str
    slot: str
    old: KernelRecord
    new: KernelRecord

    def __str__(self) -> str:
        return f"{self.component}.{self.slot}: {named(self.old)} -> {named(self.new)}"


def named(record: KernelRecord) -> str:
    """Return a kernel with its arguments, or where they tell more, its constants: ``torch.nn.RMSNorm(eps=1e-06)``."""
    shown = dict(record.arguments) | {
        name: value for name, value in settled(record).items() if name == "eps" or value in (UNKNOWN,)
    }
    return f"{record.target}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def settled(record: KernelRecord) -> dict[str, Any]:
    """Return the constants of a recorded kernel; a record without them is read by the table of known kernels."""
    return record.constants or constants_of(record.target, record.family, record.arguments)


def interchangeable(old: KernelRecord, new: KernelRecord) -> list[str]:
    """Return the reasons why one kernel can't take another's place; none where it can.

    Parameters
    ----------
    old, new : KernelRecord
        Two kernels of one slot.
    """
    same = _written_alike(old, new)
    family = family_named(old.family)
    if old.family != new.family and not (same and None in (family, family_named(new.family))):
        return [f"different mathematics: {_family(old)}, {_family(new)}"]
    if family is None:
        return [] if same else [f"nothing tells which constants of family {old.family!r} have to agree"]
    mine, yours = settled(old), settled(new)
    reasons = []
    for name in family.constants:
        before, now = mine.get(name, UNKNOWN), yours.get(name, UNKNOWN)
        if UNKNOWN in (before, now):
            whose = old.target if before == UNKNOWN else new.target
            why = f"{name} of {whose} is not known; etesian.kernels.families.register_family declares it"
            reasons += [] if same else [why]
        elif before != now:
            since = f", as a default of {new.target} has changed since" if same else ""
            reasons.append(f"another constant: {name} is {before!r} there and {now!r} here{since}")
    return reasons


def _written_alike(one: KernelRecord, other: KernelRecord) -> bool:
    return one.target == other.target and one.arguments == other.arguments


def _family(record: KernelRecord) -> str:
    family = family_named(record.family)
    return f"{record.family} ({family.formula})" if family else record.family


def effective(records: Iterable[KernelRecord], settings: ModelSettings) -> dict[tuple[str, str], KernelRecord]:
    """Return the kernel of each slot that each component uses, by (component, slot).

    Parameters
    ----------
    records : iterable of KernelRecord
        What was resolved.
    settings : ModelSettings
        Section ``model``.
    """
    in_model = {record.slot: record for record in records if record.component == "model"}
    own = {(record.component, record.slot): record for record in records if record.component != "model"}
    used = {}
    for component in COMPONENTS:
        for slot, record in in_model.items():
            if settings.uses(component, slot):
                used[component, slot] = own.get((component, slot), record)
        gated = (component, "MLP") in used and used[component, "MLP"].family in GATED_MLPS
        if gated and not getattr(settings, component).activates():
            used.pop((component, "Activation"), None)
    return used


def differences(old: Sequence[KernelRecord], new: Sequence[KernelRecord], settings: ModelSettings) -> list[Difference]:
    """Return the slots that two mappings of one model fill otherwise.

    Origin, library and version of a kernel, and whether it is compiled, are no difference.

    Parameters
    ----------
    old, new : sequence of KernelRecord
        What was resolved for each.
    settings : ModelSettings
        Section ``model``, alike for both but for its kernels.
    """
    before, now = effective(old, settings), effective(new, settings)
    found = {key: (before[key], now[key]) for key in now if key in before and not _same(before[key], now[key])}
    differing = []
    for slot in dict.fromkeys(slot for _, slot in found):
        changed = [component for component in COMPONENTS if (component, slot) in found]
        using = [component for component in COMPONENTS if (component, slot) in now]
        pairs = [found[component, slot] for component in changed]
        alike = all(_same(o, pairs[0][0]) and _same(n, pairs[0][1]) for o, n in pairs)
        of_model = all(new_one.component == "model" for _, new_one in pairs)
        names = ["model"] if alike and of_model and changed == using else changed
        differing += [Difference(name, slot, *pair) for name, pair in zip(names, pairs, strict=False)]
    return differing


def _same(one: KernelRecord, other: KernelRecord) -> bool:
    """Tell whether two records are of one kernel with one meaning; defaults that are written out change nothing."""
    if one.target != other.target:
        return False
    if one.arguments == other.arguments:
        return not interchangeable(one, other)  # a default may have changed since
    family = family_named(one.family)
    if family is None or one.family != other.family or settled(one) != settled(other):
        return False
    readers = readers_of(one.target, family).values()
    named_constants = {reader.name for reader in readers if isinstance(reader, Argument)} | set(family.constants)
    return _without(one.arguments, named_constants) == _without(other.arguments, named_constants)


def _without(arguments: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def arguments_for(target: str, family: str, constants: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that give an installed kernel some constants, and the reasons why none do.

    Parameters
    ----------
    target : str
        Path of the kernel.
    family : str
        Its family, a known one.
    constants : mapping
        What :func:`settled` returns of a kernel of the family.
    """
    known = family_named(family)
    assert known is not None
    arguments: dict[str, Any] = {}
    reasons = []
    for name, reader in readers_of(target, known, find(target)).items():
        value = constants.get(name, UNKNOWN)
        if value == UNKNOWN:
            reasons.append(f"{name} is not known")
        elif isinstance(reader, Argument):
            if name == "eps" or reader.read({}) != value:
                arguments[reader.name] = reader.value_for(value)
        elif reader != value and constants.get("elementwise_affine") is not False:
            reasons.append(f"{target} has no {name}={value!r}")
    return arguments, reasons


def written_out(record: KernelRecord) -> dict[str, Any]:
    """Return the arguments of a recorded kernel with all constants that arguments set, those of its defaults too."""
    family = family_named(record.family)
    if family is None:
        return dict(record.arguments)
    try:
        installed = find(record.target)
    except (Exception, SystemExit):  # importing may raise anything; what is not there has no more to tell
        installed = None
    constants = settled(record)
    found = {
        reader.name: reader.value_for(constants[name])
        for name, reader in readers_of(record.target, family, installed).items()
        if isinstance(reader, Argument) and constants.get(name, UNKNOWN) != UNKNOWN
    }
    return found | dict(record.arguments)


def plain_record(record: KernelRecord) -> tuple[KernelRecord, list[str]]:
    """Return the kernel of the same family and constants that needs PyTorch alone, and the reasons why there is none.

    A kernel that needs nothing else stays as it is.
    """
    if record.target in PLAIN:
        return record, []
    family = family_named(record.family)
    if family is None or family.plain is None:
        return record, [f"family {record.family!r} has no kernel in plain PyTorch"]
    constants = settled(record)
    arguments, reasons = arguments_for(family.plain, record.family, constants)
    return replace(record, target=family.plain, arguments=arguments, constants=constants), reasons


def find(path: str) -> Any:
    """Return what the dotted path of an installed kernel leads to."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def key_of(difference: Difference) -> str:
    """Return the config key of the slot that differs."""
    return config_key(difference.component, difference.slot)
