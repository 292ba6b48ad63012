"""Weights of another run for other variables or another grid: what is taken, matched by variable, and starts anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from etesian.checkpoint.content import variables_of
from etesian.checkpoint.read import check_finite
from etesian.data.variables import Variables
from etesian.errors import Problem, UserError, did_you_mean
from etesian.files import write_json
from etesian.training.experiment import Experiment
from etesian.training.module import ForecastModule
from etesian.training.run_folder import RunFolder

WHERE = "training.transfer_allow"
PREFIX = "forecaster.model."
BY_VARIABLE = {
    "encoder.embed_source.weight": ("input", 1),
    "decoder.embed_destination.weight": ("input", 1),
    "decoder.output.weight": ("output", 0),
    "decoder.output.bias": ("output", 0),
}
"""Tensors with a column or row for each variable: which variables, and along which axis."""

Label = tuple[str, int]
"""A variable and its input step; of an output, and of the features of a node, there is no step but a number."""


@dataclass(frozen=True)
class Transferred:
    """What became of a tensor: ``taken``, ``by variable``, ``anew`` (of this model) or ``left out`` (of the other)."""

    name: str
    how: str
    shape: tuple[int, ...]
    their_shape: tuple[int, ...] | None
    anew: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def to_allow(self) -> tuple[str, ...]:
        """What the config has to allow: a tensor, or variables."""
        return (self.name,) if self.how in ("anew", "left out") else (*self.anew, *self.left_out)


def transfer(
    model: nn.Module,
    path: Path,
    checkpoint: Mapping[str, Any],
    variables: Variables,
    steps: int,
    allowed: Sequence[str],
) -> list[Transferred]:
    """Give a model the weights of a checkpoint that fit it, in place.

    Parameters
    ----------
    model : nn.Module
        The model of the new run, with its first weights.
    path : Path
        The checkpoint, for what is said.
    checkpoint : mapping
        What is in it.
    variables : Variables
        Those of the new run.
    steps : int
        Its ``task.multistep_input``.
    allowed : sequence of str
        Names or patterns of tensors and variables that may start anew or be left out.

    Returns
    -------
    list of Transferred
        One for each tensor of either model.

    Raises
    ------
    UserError
        If the other model takes another number of steps, nothing fits, something that does not fit is not allowed, or
        something is allowed that is not there.
    """
    content = checkpoint["etesian"]
    before = content["config"]["task"]["multistep_input"]
    if before != steps:
        what = f"{path} is of a model of {before} input steps, this one has {steps}"
        raise UserError(what, where="task.multistep_input", allowed=str(before), mend=f"task.multistep_input={before}")
    theirs = {
        name.removeprefix(PREFIX): value for name, value in checkpoint["state_dict"].items() if name.startswith(PREFIX)
    }
    others = variables_of(content)
    if (variables.input, variables.output) != (others.input, others.output):
        _check_places(model)
    values: dict[str, Tensor] = {}
    found = []
    for name, parameter in model.named_parameters():
        own, their = parameter.detach(), theirs.get(name)
        entry, value = _fitted(name, own, their, variables, others, steps)
        found.append(entry)
        if value is not None:
            values[name] = value
    here = model.state_dict().keys()
    found += [
        Transferred(name, "left out", (), tuple(value.shape)) for name, value in theirs.items() if name not in here
    ]
    _check_allowed(path, found, allowed)
    if not values:
        raise UserError(f"nothing of {path} fits this model", where="training.transfer_from")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values:
                parameter.copy_(values[name])
    return found


def transfer_into(
    module: ForecastModule,
    experiment: Experiment,
    run: RunFolder,
    path: Path,
    checkpoint: Mapping[str, Any],
    *,
    report: bool,
) -> str:
    """Give the model of a run the weights of a checkpoint, print and write what was taken, and say where it starts.

    The arguments are those of the run; only the process with `report` prints and writes.
    """
    check_finite(path, checkpoint["state_dict"])
    config = experiment.config
    steps, allowed = config.task.multistep_input, config.training.transfer_allow
    found = transfer(module.forecaster.model, path, checkpoint, experiment.variables, steps, allowed)
    if report:
        run.create()
        write_json(run.path / "transfer.json", transfer_json(path, found))
        Console().print(transfer_table(found))
    return f"new, with weights of {path}"


def _fitted(
    name: str, own: Tensor, their: Tensor | None, variables: Variables, others: Variables, steps: int
) -> tuple[Transferred, Tensor | None]:
    """Return what becomes of a tensor, and its value where any of it is taken."""
    shape, their_shape = tuple(own.shape), None if their is None else tuple(their.shape)
    if their is None:
        return Transferred(name, "anew", shape, None), None
    if name in BY_VARIABLE and own.dim() == their.dim():
        role, axis = BY_VARIABLE[name]
        here = _labels(role, variables, steps, own.shape[axis])
        there = _labels(role, others, steps, their.shape[axis])
        rest = [size for i, size in enumerate(shape) if i != axis], [s for i, s in enumerate(their.shape) if i != axis]
        if here != there and rest[0] == rest[1]:
            value = _matched(own, their, here, there, axis)
            anew, lost = _names(set(here) - set(there)), _names(set(there) - set(here))
            return Transferred(name, "by variable", shape, their_shape, anew, lost), value
    if shape == their_shape:
        return Transferred(name, "taken", shape, their_shape), their
    return Transferred(name, "anew", shape, their_shape), None


def _check_places(model: nn.Module) -> None:
    """Check that it is known where a model has its variables: graph networks have them inside of MLPs."""
    names = [name for name, _ in model.named_parameters()]
    embeddings = [name for name in names if name.startswith(("encoder.embed_source.", "decoder.embed_destination."))]
    known = {*BY_VARIABLE, "encoder.embed_source.bias", "decoder.embed_destination.bias"}
    if not set(embeddings) <= known or not {"encoder.embed_source.weight", "decoder.output.weight"} <= set(names):
        raise UserError(
            "the variables are others than those of training.transfer_from, and are matched in linear embeddings and "
            "outputs alone, which this encoder or decoder does not have",
            where="training.transfer_from",
            allowed="a run of the same variables in the same order, or encoder and decoder of kind graphtransformer",
        )


def _labels(role: str, variables: Variables, steps: int, size: int) -> list[Label]:
    """Return what each column or row is of; after the variables of all steps come the features of a node."""
    names, copies = (variables.input, steps) if role == "input" else (variables.output, 1)
    labels = [(name, step) for step in range(copies) for name in names]
    return labels + [("node features", number) for number in range(size - len(labels))]


def _matched(own: Tensor, their: Tensor, here: Sequence[Label], there: Sequence[Label], axis: int) -> Tensor:
    places = {label: place for place, label in enumerate(there)}
    shared = [label for label in here if label in places]
    to = torch.tensor([here.index(label) for label in shared], dtype=torch.long)
    since = torch.tensor([places[label] for label in shared], dtype=torch.long)
    return own.clone().index_copy_(axis, to, their.index_select(axis, since).to(own))


def _names(labels: Iterable[Label]) -> tuple[str, ...]:
    return tuple(sorted({name for name, _ in labels}))


def _check_allowed(path: Path, found: Sequence[Transferred], allowed: Sequence[str]) -> None:
    needed = list(dict.fromkeys(name for entry in found for name in entry.to_allow))
    refused = [name for name in needed if not any(fnmatchcase(name, pattern) for pattern in allowed)]
    problems = []
    if refused:
        whole = ",".join(dict.fromkeys([*allowed, *refused]))
        problems.append(
            Problem(
                f"not all of {path} fits this model: {_some(_reasons(found, refused))}",
                WHERE,
                "what may start anew or be left out: names or patterns of tensors and variables",
                f"'{WHERE}=[{whole}]' if that is meant",
            )
        )
    for pattern in allowed:
        if not any(fnmatchcase(name, pattern) for name in needed):
            what = f"{WHERE} names {pattern!r}, and nothing of that name starts anew or is left out"
            problems.append(Problem(what, WHERE, _some(needed) or "an empty list", did_you_mean(pattern, needed)))
    if problems:
        raise UserError.collect(problems)


def _reasons(found: Sequence[Transferred], refused: Sequence[str]) -> list[str]:
    """Say why each of the names does not fit."""
    reasons = {}
    for entry in found:
        if entry.how == "left out":
            reasons[entry.name] = f"{entry.name} is not in this model"
        elif entry.how == "anew":
            there = "missing there" if entry.their_shape is None else f"{entry.their_shape} there, {entry.shape} here"
            reasons[entry.name] = f"{entry.name} is {there}"
        for name in entry.anew:
            reasons.setdefault(name, f"{name} is new in {entry.name}")
        for name in entry.left_out:
            reasons.setdefault(name, f"{name} has no place in {entry.name}")
    return [reasons[name] for name in refused]


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:8]) + (f"; and {len(texts) - 8} more" if len(texts) > 8 else "")


def transfer_json(path: Path, found: Sequence[Transferred]) -> dict[str, Any]:
    """Return the report of a transfer for ``transfer.json``."""
    return {"from": str(path), "tensors": [asdict(entry) for entry in found]}


def transfer_table(found: Sequence[Transferred]) -> Table:
    """Return the report for a terminal: how many were taken as they are, and each of the others."""
    taken = sum(entry.how == "taken" for entry in found)
    title = f"Transferred: {taken} of {len(found)} tensors taken as they are, the others:"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("tensor", overflow="fold", min_width=36)
    for heading in ("became", "starts anew", "left out"):
        table.add_column(heading, overflow="fold")
    for entry in found:
        if entry.how != "taken":
            table.add_row(entry.name, entry.how, ", ".join(entry.anew), ", ".join(entry.left_out))
    return table
