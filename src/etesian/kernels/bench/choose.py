"""The fastest kernel of each slot among those that compute the same, and the preset that names them."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from etesian.errors import Problem, UserError
from etesian.files import write_text
from etesian.kernels.bench.compiled import OPTIONS
from etesian.kernels.bench.results import KernelResult, ShapeResult
from etesian.kernels.interchange import interchangeable
from etesian.kernels.slots import SLOTS
from etesian.outputs import check_writable
from etesian.places import is_option_name

PRESETS = Path("model") / "layer_kernels"
"""Folder in which presets are looked for, under the current one or --config-dir."""


@dataclass(frozen=True)
class Choice:
    """What was found for one slot.

    Attributes
    ----------
    slot : str
        The slot.
    own : KernelResult or None
        The experiment's kernel; None where it was not timed on every shape.
    best : KernelResult or None
        The fastest kernel that computes the same; None where none was timed on every shape.
    own_ms, best_ms : float or None
        Forward and backward pass, each shape times the calls of a step.
    spread_ms : float
        Half of what lies between the fastest and the slowest rounds, of both together.
    unequal : dict
        Faster kernels that compute something else, by label, with the reason why they can't take the place.
    """

    slot: str
    own: KernelResult | None
    best: KernelResult | None
    own_ms: float | None
    best_ms: float | None
    spread_ms: float
    unequal: dict[str, str]

    @property
    def changes(self) -> bool:
        """Whether another kernel is faster by more than the spread, or the experiment's own does not run here."""
        if self.best is None or self.own is self.best:
            return False
        if self.own_ms is None or self.best_ms is None:
            return True
        return self.best_ms + self.spread_ms < self.own_ms

    def __str__(self) -> str:
        if self.best is None:
            return f"{self.slot}: no kernel of the experiment's family was timed"
        best = _named(self.best)
        if self.own is self.best:
            return f"{self.slot}: {best}, the experiment's own, is the fastest of its family"
        if self.own_ms is None or self.best_ms is None:
            return f"{self.slot}: {best} is the fastest of the family; the experiment's own was not timed"
        if not self.changes:
            return f"{self.slot}: no kernel of the family is faster than the experiment's own by more than the spread"
        return f"{self.slot}: {best} is {self.own_ms / self.best_ms:.2f} times as fast as the experiment's own"


def choose(slot: str, shapes: Sequence[ShapeResult]) -> Choice:
    """Compare the kernels of a slot over all its shapes, each weighed by the calls of a step.

    Parameters
    ----------
    slot : str
        The slot.
    shapes : sequence of ShapeResult
        The results; those of other slots are left out.
    """
    shapes = [shape for shape in shapes if shape.slot == slot]
    chosen = next((k for shape in shapes for k in shape.kernels if "model" in k.chosen_by), None)
    totals: dict[tuple[str, bool], tuple[float, float]] = {}
    first = {(kernel.label, kernel.compiled): kernel for kernel in (shapes[0].timed if shapes else ())}
    for key in first:
        timings = [k.both for shape in shapes for k in shape.timed if (k.label, k.compiled) == key]
        if len(timings) == len(shapes):
            weighed = [(shape.calls, t.call) for shape, t in zip(shapes, timings, strict=True) if t is not None]
            median = sum(calls * call.median for calls, call in weighed)
            totals[key] = (median, sum(calls * (call.high - call.low) / 2 for calls, call in weighed))
    own_key = None if chosen is None else (chosen.label, chosen.compiled)
    own_total = totals.get(own_key) if own_key is not None else None
    reference = chosen.record if chosen is not None else None
    equal: dict[tuple[str, bool], tuple[float, float]] = {}
    unequal: dict[str, str] = {}
    for key, total in totals.items():
        record = first[key].record
        reasons = ["there is no kernel of the model to compare with"]
        if reference is not None and record is not None:
            reasons = interchangeable(reference, record)
        if not reasons:
            equal[key] = total
        elif own_total is None or total[0] < own_total[0]:
            unequal[_named(first[key])] = "; ".join(reasons)
    best_key = min(equal, key=lambda key: equal[key][0]) if equal else None
    spreads = [totals[key][1] for key in (own_key, best_key) if key in totals]
    return Choice(
        slot=slot,
        own=first.get(own_key) if own_total is not None and own_key is not None else None,
        best=None if best_key is None else first[best_key],
        own_ms=own_total[0] if own_total else None,
        best_ms=equal[best_key][0] if best_key is not None else None,
        spread_ms=sum(spreads),
        unequal=unequal,
    )


def check_preset_path(path: Path, *, force: bool, shipped: Collection[str] = ()) -> None:
    """Check that a preset may be written there and is found by its name afterwards.

    Parameters
    ----------
    path : Path
        The file.
    force : bool
        Whether a file that is there may be replaced.
    shipped : collection of str
        Names of the presets that come with the package, whose place it would take.

    Raises
    ------
    UserError
        If the file is not ``.../model/layer_kernels/NAME.yaml``, has a name that no override can have or that of
        another preset, can't be written, or is there already and is not to be replaced.
    """
    if path.suffix != ".yaml" or path.parent.parts[-2:] != PRESETS.parts:
        raise UserError(
            f"{path} would not be found as a preset", where="--write", allowed="[FOLDER/]model/layer_kernels/NAME.yaml",
            mend=f"--write {PRESETS / (path.stem or 'fastest')}.yaml",
        )  # fmt: skip
    if not is_option_name(path.stem):
        raise UserError(
            f"model/layer_kernels={path.stem} on the command line would not name {path}", where="--write",
            allowed="a letter, then letters, digits, _ - .; not null, true or false",
            mend=f"--write {path.parent / 'fastest.yaml'}",
        )  # fmt: skip
    if path.stem in shipped:
        what = f"a preset {path.stem} comes with the package: {path} would take its place"
        raise UserError(what, where="--write", mend=f"--write {path.with_stem('fastest')}")
    check_writable(path, "--write")
    if path.exists() and not force:
        raise UserError(f"{path} is there already", where="--write", mend="another name, or --force, which replaces it")


def check_choices(choices: Sequence[Choice]) -> None:
    """Check that a preset of the choices names no kernel that failed.

    Raises
    ------
    UserError
        With each slot whose own kernel was not timed, and that has no other of its family.
    """
    problems = [
        Problem(
            f"no preset is written: the experiment's own {choice.slot} was not timed, and neither was another kernel "
            "of its family",
            f"model.layer_kernels.{choice.slot}",
            mend="another kernel for the slot; the tables tell why each was not timed",
        )
        for choice in choices
        if choice.own is None and choice.best is None
    ]
    if problems:
        raise UserError.collect(problems)


def preset_text(mapping: Mapping[str, Mapping[str, Any]], choices: Sequence[Choice], about: Sequence[str]) -> str:
    """Return a preset that names the fastest kernels, with the measurements in comments.

    Parameters
    ----------
    mapping : mapping
        ``model.layer_kernels`` of the experiment; a slot that it leaves out gets its default written out.
    choices : sequence of Choice
        What was found.
    about : sequence of str
        Card, date, versions: lines of the comment at the top.
    """
    found = {choice.slot: choice for choice in choices}
    lines = ["# The fastest kernels of each family, as `kernels bench --write` measured them."]
    lines += [f"# {part}" for line in about for part in textwrap.wrap(line, 110)]
    for slot in SLOTS.values():
        entry = dict(mapping.get(slot.name, {"_target_": slot.target, **slot.arguments}))
        choice = found.get(slot.name)
        if choice is None:
            lines.append(f"# {slot.name}: not measured; the experiment's own.")
        else:
            lines += [f"# {part}" for part in textwrap.wrap(f"{choice}{_times(choice)}.", 110)]
            if choice.changes and choice.best is not None:
                entry = {"_target_": choice.best.target, **choice.best.arguments}
                if choice.best.compiled:
                    entry["_compile_"] = dict(OPTIONS)
        entry.pop("_partial_", None)
        shown = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()
        lines.append(f"{slot.name}: {shown}")
    return "\n".join(lines) + "\n"


def write_preset(path: Path, text: str) -> None:
    """Write a preset; the file appears whole or not at all."""
    write_text(path, text)


def _times(choice: Choice) -> str:
    times = [
        f"{name} {value:.4g} ms"
        for name, value in (("fastest", choice.best_ms), ("own", choice.own_ms))
        if value is not None
    ]
    return f" (forward and backward, all calls of a step: {', '.join(times)})" if times else ""


def _named(kernel: KernelResult) -> str:
    return f"{kernel.label}, compiled" if kernel.compiled else kernel.label
