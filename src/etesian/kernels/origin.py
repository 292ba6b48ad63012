"""Where the entry of a slot comes from, and which of its constants nobody wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etesian.kernels.arguments import is_leftover
from etesian.kernels.record import KernelRecord, config_key
from etesian.schema.presets import Preset, is_same


def origin_of(
    component: str,
    slot: str,
    mapping: Mapping[str, Any],
    preset: str | None,
    overrides: Sequence[str],
    chosen: Mapping[str, Preset] | None,
) -> str:
    """Return what filled a slot.

    Parameters
    ----------
    component, slot : str
        The slot, of ``model`` or of a component.
    mapping : mapping
        The slots of the component in the composed config.
    preset : str or None
        Choice of the group ``model/layer_kernels`` for the model.
    overrides : sequence of str
        Overrides of the command line.
    chosen : mapping or None
        Key of a mapping of slots to the preset that was chosen there; None where nothing tells, which leaves the
        choice for the model alone.

    Returns
    -------
    str
        ``default``, ``override``, ``preset NAME`` or ``config``.
    """
    if slot not in mapping:
        return "default"
    key = config_key(component, slot)
    parent = key.rpartition(".")[0]
    for override in overrides:
        name, _, value = override.lstrip("+~").partition("=")
        if name == key or name.startswith(f"{key}.") or (name == parent and f"{slot}:" in value.replace(" ", "")):
            return "override"
    if chosen is None:
        return f"preset {preset}" if preset is not None and component == "model" else "config"
    there = chosen.get(parent)
    return f"preset {there.name}" if there is not None and there.has(slot, mapping[slot]) else "config"


def unwritten_constants(record: KernelRecord, left: Preset | None, overrides: Sequence[str]) -> str:
    """Return a note on arguments that are those of another kernel of the preset, and on an eps that none sets.

    Parameters
    ----------
    record : KernelRecord
        With its constants.
    left : Preset or None
        The preset that was chosen where the slot stands.
    overrides : sequence of str
        Overrides of the command line.
    """
    notes = []
    where = config_key(record.component, record.slot)
    before = (left.slots.get(record.slot) if left is not None else None) or {}
    if left is not None and before.get("_target_", record.target) != record.target:
        kept = [name for name, value in record.arguments.items() if name in before and is_same(before[name], value)]
        by_override = [name for name in kept if is_leftover(where, name, overrides)]
        by_config = [name for name in kept if not _is_set(where, name, overrides) and name not in by_override]
        if by_override:
            notes.append(f"{', '.join(by_override)} kept from {before['_target_']}")
        if by_config:
            notes.append(f"{', '.join(by_config)} as preset {left.name} has it for {before['_target_']}")
    eps = record.constants.get("eps")
    if eps is not None and not any(value == eps for value in record.arguments.values()):
        notes.append(f"eps: {eps}")
    return "; ".join(notes)


def _is_set(where: str, name: str, overrides: Sequence[str]) -> bool:
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return f"{where}.{name}" in keys or where in keys
