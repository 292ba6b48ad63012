"""From ``model.layer_kernels`` to the factories the model builds its layers with. Strict: nothing falls back."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from etesian.errors import Problem, UserError
from etesian.kernels.arguments import check_arguments, special_key
from etesian.kernels.families import GATED_MLPS, LINEAR, constants_of, family_of
from etesian.kernels.origin import origin_of, unwritten_constants
from etesian.kernels.record import KernelRecord, config_key
from etesian.kernels.slots import SLOTS, Slot, unknown_slot
from etesian.kernels.targets import TargetError, import_target, library_of
from etesian.schema.compilation import CompileOptions
from etesian.schema.describe import keys_of, show
from etesian.schema.model import ModelSettings
from etesian.schema.presets import Preset
from etesian.schema.validate import check_section

COMPONENTS = ("encoder", "processor", "decoder")
"""Components that may fill slots otherwise than the model does."""

EDGE_PROJECTION_NOTE = "edge projection: inside GraphAttention"
FUSED_PROJECTIONS_NOTE = "query, key, value: one product"


class KernelFactory:
    """Builds the layers of one slot.

    Parameters
    ----------
    target : class or function
        What builds a layer.
    record : KernelRecord
        Slot, path, arguments and family of the target.
    """

    def __init__(self, target: Any, record: KernelRecord) -> None:
        self.target, self.record = target, record

    @property
    def reads_tiles(self) -> bool:
        """Whether the layers, or those that a function is annotated to return, read edges in tiles."""
        made = self.target if inspect.isclass(self.target) else typing.get_type_hints(self.target).get("return")
        return bool(getattr(made, "reads_tiles", False) or getattr(self.target, "reads_tiles", False))

    def __call__(self, *positional: Any, **keywords: Any) -> nn.Module:
        """Build a layer with what the model passes and the arguments of the config.

        Raises
        ------
        UserError
            If the target refuses its arguments, or returns something that is no module.
        """
        record = self.record
        where = config_key(record.component, record.slot)
        try:
            layer = self.target(*positional, **(record.arguments | keywords))
        except UserError:
            raise
        except (Exception, SystemExit) as cause:  # a kernel of the user's may raise anything
            what = f"slot {record.slot}: building {record.target} failed: {type(cause).__name__}: {cause}"
            raise UserError(what, where=where) from cause
        if not isinstance(layer, nn.Module):
            what = f"slot {record.slot}: {record.target} built a {type(layer).__name__}, which is no torch.nn.Module"
            raise UserError(what, where=where)
        layer.made_by = (record.component, record.slot)  # type: ignore[assignment]
        return layer


@dataclass(frozen=True)
class LayerKernels:
    """One factory a slot; the names are those of the config."""

    Linear: KernelFactory
    LayerNorm: KernelFactory
    Activation: KernelFactory
    QueryNorm: KernelFactory
    KeyNorm: KernelFactory
    MLP: KernelFactory
    GraphAttention: KernelFactory
    Attention: KernelFactory


@dataclass(frozen=True)
class ComponentKernels:
    """The factories of each component, and the record of what was resolved.

    Attributes
    ----------
    model : LayerKernels
        What ``model.layer_kernels`` gives.
    encoder, processor, decoder : LayerKernels
        The same with the component's own slots put in.
    records : list of KernelRecord
        One a slot of the model, one a slot that a component overrides.
    """

    model: LayerKernels
    encoder: LayerKernels
    processor: LayerKernels
    decoder: LayerKernels
    records: list[KernelRecord]


def resolve_kernels(
    settings: ModelSettings,
    *,
    preset: str | None,
    overrides: Sequence[str],
    preset_slots: Mapping[str, Preset] | None = None,
) -> ComponentKernels:
    """Import, check and record the kernels of a model.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    preset : str or None
        Choice of the group ``model/layer_kernels``, for the origin of what is not overridden.
    overrides : sequence of str
        Overrides of the command line as they were typed.
    preset_slots : mapping, optional
        Key of a mapping of slots, such as ``model.layer_kernels``, to the preset chosen there: to tell what is of its
        file from what a config changed, and an argument that is left over.

    Raises
    ------
    UserError
        With all that is wrong: unknown slots, targets that can't be imported or make no modules, arguments that
        don't fit, and Linears that graph attention can't take the edge projection over from.
    """
    problems: list[Problem] = []
    in_model: dict[str, KernelFactory] = {}
    factories: dict[str, dict[str, KernelFactory]] = {}
    for component in ("model", *COMPONENTS):
        mapping = settings.layer_kernels if component == "model" else getattr(settings, component).layer_kernels
        own: dict[str, KernelFactory] = {}
        problems.extend(unknown_slot(name, config_key(component, name)) for name in mapping if name not in SLOTS)
        for slot in SLOTS.values():
            if component != "model" and slot.name not in mapping:
                continue
            origin = origin_of(component, slot.name, mapping, preset, overrides, preset_slots)
            left = (preset_slots or {}).get(config_key(component, slot.name).rpartition(".")[0])
            factory = _resolve_slot(component, slot, mapping.get(slot.name), origin, overrides, left, problems)
            if factory is not None:
                own[slot.name] = factory
        if component == "model":
            in_model = own
        factories[component] = in_model | own
    if problems:
        raise UserError.collect(problems)

    problems = _unfusable(settings, factories)
    if problems:
        raise UserError.collect(problems)
    used = {component: LayerKernels(**factories[component]) for component in factories}
    return ComponentKernels(**used, records=_records(settings, factories))


def _resolve_slot(
    component: str,
    slot: Slot,
    entry: Mapping[str, Any] | None,
    origin: str,
    overrides: Sequence[str],
    left: Preset | None,
    problems: list[Problem],
) -> KernelFactory | None:
    """Return the factory of one slot; what is wrong with it goes to `problems`."""
    where = config_key(component, slot.name)
    entry = {"_target_": slot.target, **slot.arguments} if entry is None else entry
    path = entry.get("_target_")
    if not isinstance(path, str):
        what = f"slot {slot.name} has no _target_" if path is None else f"slot {slot.name}: _target_ is {path!r}"
        meant = next((mend for name, value in entry.items() if (mend := special_key(where, name, value))), None)
        allowed = f"the import path of a kernel, such as {slot.target}"
        problems.append(Problem(what, f"{where}._target_", allowed, meant if path is None else None))
        return None
    bad_keys = _special_keys(slot, entry, where)
    compiled, bad_options = _compile_options(entry.get("_compile_"), f"{where}._compile_")
    bad_keys += bad_options
    problems.extend(bad_keys)
    arguments = {name: value for name, value in entry.items() if not _is_special(name)}
    try:
        target = import_target(path, slot=slot.name, where=f"{where}._target_")
    except TargetError as error:
        problems.append(error.problem)
        return None
    before = None if left is None else left.slots.get(slot.name)
    bad_arguments = check_arguments(target, path, slot, arguments, where=where, overrides=overrides, preset=before)
    problems.extend(bad_arguments)
    if bad_keys or bad_arguments:
        return None
    library, version = library_of(target, path)
    family = family_of(path, target)
    record = KernelRecord(
        slot.name,
        component,
        path,
        arguments,
        family,
        library,
        version,
        origin,
        compile=compiled,
        compiled_by="" if compiled is None else f"{where}._compile_",
    )
    by = "" if compiled is None else f"{where}._compile_"
    record = replace(record, constants=constants_of(path, family, arguments, target), compiled_by=by)
    return KernelFactory(target, replace(record, note=unwritten_constants(record, left, overrides)))


def _is_special(name: str) -> bool:
    return name.startswith("_") and name.endswith("_")


def _special_keys(slot: Slot, entry: Mapping[str, Any], where: str) -> list[Problem]:
    problems = []
    for name, value in entry.items():
        if name == "_partial_" and value is not True:
            what = f"slot {slot.name}: _partial_ is {value!r}, but the model always completes the arguments itself"
            problems.append(Problem(what, f"{where}.{name}", "true, or leave it out"))
        elif _is_special(name) and name not in ("_target_", "_partial_", "_compile_"):
            allowed = "_target_, _partial_: true, _compile_, and arguments of the target"
            problems.append(
                Problem(f"slot {slot.name}: unknown key {name!r}", f"{where}.{name}", allowed, f"~{where}.{name}")
            )
    return problems


def _compile_options(value: Any, where: str) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return the options of a slot's compilation that are not the defaults, or None without one."""
    if value is None:
        return None, []
    options, problems = check_section({} if value is True else value, where, CompileOptions)
    if not isinstance(value, dict | bool) or value is False:
        allowed = f"true, or a mapping with the keys {', '.join(keys_of(CompileOptions))}; left out: not compiled"
        problems = [Problem(f"{where}={show(value)} is no way to compile", where, allowed, f"~{where}")]
    return (None if options is None else options.model_dump(exclude_defaults=True)), problems


def _unfusable(settings: ModelSettings, factories: Mapping[str, Mapping[str, KernelFactory]]) -> list[Problem]:
    """Return a problem for each Linear that is not called but read, and so has to be a plain linear layer."""
    problems: dict[str, Problem] = {}
    for component in COMPONENTS:
        linear, attention = factories[component]["Linear"].record, factories[component]["GraphAttention"].record
        where = config_key(linear.component, "Linear")
        if linear.family == LINEAR or where in problems:
            continue
        of = f"the weights of slot Linear, which is {linear.target} of family {linear.family!r}"
        mend = f"{where}._target_=torch.nn.Linear"
        if settings.uses(component, "GraphAttention"):
            what = f"slot GraphAttention ({attention.target}) computes the edge projection from {of}"
        elif getattr(settings, component).fuse_projections:
            key = f"model.{component}.fuse_projections"
            what, mend = f"{key}=true computes query, key and value in one product from {of}", f"{key}=false, or {mend}"
        else:
            continue
        what += ": only a plain linear layer can be taken over"
        problems[where] = Problem(what, where, f"a Linear of family {LINEAR!r}", mend)
    return list(problems.values())


def _records(settings: ModelSettings, factories: Mapping[str, Mapping[str, KernelFactory]]) -> list[KernelRecord]:
    """Return the records in the order of the slots, with notes on fusions and on slots that nothing uses."""
    records = []
    for slot in SLOTS:
        for component in ("model", *COMPONENTS):
            record = factories[component][slot].record
            if record.component == component:
                users = _users(component, slot, factories)
                gated = [
                    name
                    for name in users
                    if factories[name]["MLP"].record.family in GATED_MLPS and not getattr(settings, name).activates()
                ]
                noted = _noted(replace(record, note=""), users, settings, gated)
                if noted.note.startswith("not used"):
                    records.append(noted)
                    continue
                notes = [note for note in (noted.note, record.note) if note]
                records.append(_compiled(replace(noted, note="; ".join(notes)), settings))
    return records


def _compiled(record: KernelRecord, settings: ModelSettings) -> KernelRecord:
    """Return the record with the options of the entry of ``model.compile`` that names its slot, where there is one."""
    for number, entry in enumerate(settings.compile):
        if entry.kernel == record.slot and record.compile is None:
            options = entry.options.model_dump(exclude_defaults=True)
            return replace(record, compile=options, compiled_by=f"model.compile[{number}]")
    return record


def _users(component: str, slot: str, factories: Mapping[str, Mapping[str, KernelFactory]]) -> list[str]:
    return [name for name in COMPONENTS if factories[name][slot].record.component == component]


def _noted(record: KernelRecord, users: list[str], settings: ModelSettings, gated: list[str]) -> KernelRecord:
    if not users:
        return replace(record, note="not used: every component has its own")
    if record.slot == "Activation" and gated:
        plain = [name for name in users if name not in gated]
        note = f"used in {', '.join(plain)}" if plain else "not used: the MLP has its own"
        return replace(record, note=note)
    used = [name for name in users if settings.uses(name, record.slot)]
    if record.slot in ("QueryNorm", "KeyNorm"):
        if not used and any("qk_norm" in type(getattr(settings, name)).model_fields for name in users):
            return replace(record, note="not used: qk_norm is false")
        if used:
            return record if used == users else replace(record, note=f"used in {', '.join(used)} (qk_norm)")
    if not used:
        where = "nothing" if record.component == "model" else f"no {record.component}"
        return replace(record, note=f"not used: {where} in a model of kind {settings.kind} is made by it")
    notes = [] if used == users else [f"used in {', '.join(used)}"]
    if record.slot in ("Linear", "GraphAttention") and any(settings.uses(c, "GraphAttention") for c in used):
        notes.insert(0, EDGE_PROJECTION_NOTE)
    joint = [name for name in used if getattr(settings, name).fuse_projections]
    if record.slot == "Linear" and joint:
        notes.append(FUSED_PROJECTIONS_NOTE + ("" if len(joint) == len(COMPONENTS) else f" in {', '.join(joint)}"))
    return replace(record, note="; ".join(notes))
