"""What ``model.compile`` and the ``_compile_`` of the slots name, and the modules of a model that they mean."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from etesian.errors import Problem, UserError, did_you_mean
from etesian.kernels.record import config_key
from etesian.kernels.resolve import ComponentKernels
from etesian.kernels.slots import SLOTS
from etesian.kernels.targets import TargetError, import_target
from etesian.schema.compilation import CompileOptions, describe_options
from etesian.schema.model import ModelSettings


@dataclass(frozen=True)
class Entry:
    """One thing to compile.

    Attributes
    ----------
    where : str
        The config key that asks for it.
    name : str
        The slot or the name of the class, for messages.
    options : CompileOptions
        Arguments of torch.compile.
    slot : str or None
        The slot whose modules are meant.
    component : str or None
        The component of the mapping that filled the slot; None means every one.
    kind : type or None
        The class whose instances are meant.
    within : str or None
        The component of the model whose modules alone are meant.
    """

    where: str
    name: str
    options: CompileOptions
    slot: str | None = None
    component: str | None = None
    kind: type[nn.Module] | None = None
    within: str | None = None

    def matches(self, name: str, module: nn.Module) -> bool:
        """Tell whether the entry means a module of that name."""
        if self.within is not None and name.partition(".")[0] != self.within:
            return False
        if self.kind is not None:
            return isinstance(module, self.kind)
        component, slot = getattr(module, "made_by", (None, None))
        return slot == self.slot and self.component in (None, component)

    @property
    def shown(self) -> str:
        """The entry as messages name it: ``model.compile[0] (LayerNorm)``."""
        return f"{self.where} ({self.name})"

    @property
    def removal(self) -> str:
        """What removes it from the config."""
        return f"~{self.where}" if self.where.endswith("_compile_") else f"delete {self.where}"

    def describe(self, count: int) -> str:
        """Return the entry with its options: ``LayerNorm (11 modules, fullgraph)``."""
        words = describe_options(self.options)
        return f"{self.name} ({count} module{'s' * (count != 1)}{', ' * bool(words)}{words})"


def collect_entries(settings: ModelSettings, kernels: ComponentKernels) -> list[Entry]:
    """Return the entries of ``model.compile`` and of the slots, with their classes imported.

    Raises
    ------
    UserError
        With each slot that is unknown, and each path that leads to no class of modules.
    """
    entries, problems = [], []
    for position, entry in enumerate(settings.compile):
        where = f"model.compile[{position}]"
        if entry.kernel is not None:
            entries.append(Entry(where, entry.kernel, entry.options, slot=entry.kernel))
            if entry.kernel not in SLOTS:
                mend = did_you_mean(entry.kernel, SLOTS)
                what = f"unknown layer kernel slot {entry.kernel!r}"
                problems.append(Problem(what, f"{where}.kernel", ", ".join(SLOTS), mend))
            continue
        try:
            kind = _import_class(str(entry.module), f"{where}.module")
        except TargetError as error:
            problems.append(error.problem)
        else:
            name = kind.__name__ if entry.component is None else f"{entry.component}.{kind.__name__}"
            entries.append(Entry(where, name, entry.options, kind=kind, within=entry.component))
    for record in kernels.records:
        if record.compile is not None and not record.compiled_by.startswith("model.compile["):
            where = f"{config_key(record.component, record.slot)}._compile_"
            name = record.slot if record.component == "model" else f"{record.component}.{record.slot}"
            options = CompileOptions.model_validate(record.compile)
            entries.append(Entry(where, name, options, slot=record.slot, component=record.component))
    if problems:
        raise UserError.collect(problems)
    return entries


def _import_class(path: str, where: str) -> type[nn.Module]:
    allowed = "the import path of a subclass of torch.nn.Module"
    prefix = "slot compile: "
    try:
        found = import_target(path, slot="compile", where=where)
    except TargetError as error:
        problem = error.problem
        allowed = allowed if problem.allowed else ""
        what = problem.what.removeprefix(prefix)
        raise TargetError(replace(problem, what=what, allowed=allowed or None)) from error
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise TargetError(Problem(f"{path} is a function, not a class", where, allowed))
    return found


def match_entries(model: nn.Module, entries: Sequence[Entry]) -> list[dict[str, nn.Module]]:
    """Return for each entry the modules that it means, by name.

    Raises
    ------
    UserError
        With each entry that means no module, and each two of which one compiles what the other means, or what is
        inside it.
    """
    modules = dict(model.named_modules())
    matched = [{name: module for name, module in modules.items() if entry.matches(name, module)} for entry in entries]
    problems = [_unmatched(entry, modules) for entry, found in zip(entries, matched, strict=True) if not found]
    owners = [(name, entry) for entry, found in zip(entries, matched, strict=True) for name in found]
    seen = set()
    for name, entry in owners:
        for inside, other in owners:
            if (other is entry and inside == name) or (entry.where, other.where) in seen:
                continue
            if inside == name and (other.where, entry.where) not in seen:
                seen.add((entry.where, other.where))
                problems.append(_twice(name, entry, other))
            elif inside != name and (name == "" or inside.startswith(f"{name}.")):
                seen.add((entry.where, other.where))
                problems.append(_nested(name, entry, inside, other))
    if problems:
        raise UserError.collect(problems)
    return matched


def _unmatched(entry: Entry, modules: dict[str, nn.Module]) -> Problem:
    if entry.slot is not None:
        made = {getattr(module, "made_by", None) for module in modules.values()} - {None}
        used = [slot for slot in SLOTS if any(slot == pair[1] for pair in made if pair)]
        place = "" if entry.component is None else f" of {entry.component}'s"
        what = f"{entry.shown} compiles nothing: no module of this model is made by that slot{place}"
        return Problem(what, entry.where, f"slots that make modules: {', '.join(used)}", entry.removal)
    kinds = dict.fromkeys(_path(type(module)) for module in modules.values())
    named = {kind.rpartition(".")[2]: kind for kind in kinds}
    near = did_you_mean(entry.name, named)
    place = "this model" if entry.within is None else f"the {entry.within}"
    what = f"{entry.shown} compiles nothing: no module of {place} is of that class"
    return Problem(what, entry.where, ", ".join(kinds), near or entry.removal)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _twice(name: str, entry: Entry, other: Entry) -> Problem:
    what = f"{entry.shown} and {other.shown} both compile {name or 'the whole model'}"
    return Problem(what, other.where, "one entry for each module", f"{entry.removal}, or {other.removal}")


def _nested(name: str, entry: Entry, inside: str, other: Entry) -> Problem:
    if other is entry:
        what = f"{entry.shown} means {name or 'the whole model'} and {inside}, which is inside it"
        return Problem(what, entry.where, "a class or a slot whose modules do not hold each other")
    what = (
        f"{other.shown} compiles {inside}, which is inside {name or 'the whole model'}, compiled by {entry.shown}: "
        f"what is inside is compiled with it"
    )
    allowed = "no entry for what is inside a compiled module"
    return Problem(what, other.where, allowed, f"drop the inner: {other.removal}")
