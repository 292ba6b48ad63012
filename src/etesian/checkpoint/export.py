"""From a checkpoint of a run to one for inference: a forecaster whose kernels are installed everywhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etesian.checkpoint.anemoi import write_inference
from etesian.checkpoint.content import graph_of, kernels_of, statistics_of, variables_of
from etesian.checkpoint.read import check_finite, check_weights, load_checkpoint
from etesian.checkpoint.summary import WEIGHTS, graph_summary
from etesian.errors import Problem, UserError
from etesian.inference.assemble import assemble_forecaster
from etesian.inference.forecaster import Forecaster
from etesian.kernels.interchange import Difference, differences, interchangeable, key_of, named, plain_record
from etesian.kernels.parity import Parity, as_json, check_parity
from etesian.kernels.probe import probe_kernels
from etesian.kernels.record import KernelRecord, to_json
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, resolve_kernels
from etesian.schema.config import Config
from etesian.schema.validate import validate_config

PLAIN = "torch"
"""The mapping that takes the kernel of each slot's own family that needs PyTorch alone."""

TOLERANCE = 1e-4
"""Largest deviation of the exported model's output from the original's, in units of the largest value."""


@dataclass(frozen=True)
class Export:
    """A forecaster for inference, and how it was compared with the checkpoint's own.

    Attributes
    ----------
    forecaster : Forecaster
        In evaluation mode, on the CPU.
    kernels : list of KernelRecord
        Its kernels.
    parities : list of Parity
        One for each slot whose kernel is another.
    model : float or None
        Deviation of its output from that of the checkpoint's own kernels on random numbers, in units of the largest
        value; None where those don't run here, or are the same.
    why_not : str
        Why the whole models were not compared; empty where they were.
    """

    forecaster: Forecaster
    kernels: list[KernelRecord]
    parities: list[Parity]
    model: float | None
    why_not: str


def export(path: Path, name: str, mapping: Mapping[str, Any] | None, device: torch.device) -> Export:
    """Make a forecaster for inference from a checkpoint alone.

    Neither compilation nor activation checkpointing is applied to it.

    Parameters
    ----------
    path : Path
        A checkpoint of a run.
    name : str
        Name of the mapping: :data:`PLAIN`, or a preset's.
    mapping : mapping or None
        What the preset gives for ``model.layer_kernels``, for the model and all its components; None with
        :data:`PLAIN`.
    device : torch.device
        Where kernels are compared.

    Raises
    ------
    UserError
        If the checkpoint can't be read, a kernel of the mapping can't take the place of the checkpoint's, or does not
        compute the same.
    """
    checkpoint = load_checkpoint(path)
    content = checkpoint["etesian"]
    stored = kernels_of(content)
    tree = uncompiled(content["config"])
    original = stored_config(path, tree)
    config = validate_config(remapped(tree, _plain_mapping(path, stored) if mapping is None else {"model": mapping}))
    kernels = resolve_kernels(config.model, preset=name, overrides=[])
    changed = differences(stored, kernels.records, config.model)
    _refuse(path, name, changed)
    parities = check_parity(changed, kernels, config.model, device)
    weights = weights_of(checkpoint)
    check_finite(path, weights)
    forecaster = build(path, config, content, kernels, weights)
    deviation, why_not = (
        _compare_models(path, original, content, forecaster, weights, device) if changed else (None, "")
    )
    if deviation is not None and not deviation <= TOLERANCE:
        raise UserError(
            f"the exported model is {deviation:.1e} apart from the one that was trained, on random numbers",
            where=str(path),
            allowed=f"at most {TOLERANCE:.0e} apart",
            mend="another mapping with --layer-kernels",
        )
    forecaster.about = about(content, checkpoint, path, kernels.records, parities, deviation)
    return Export(forecaster, kernels.records, parities, deviation, why_not)


def write(exported: Export, output: Path) -> None:
    """Write the forecaster as anemoi-inference takes it, whole or not at all."""
    write_inference(output, exported.forecaster)


def about(
    content: Mapping[str, Any],
    counters: Mapping[str, Any],
    source: Path,
    kernels: Sequence[KernelRecord],
    parities: list[Parity],
    deviation: float | None = None,
) -> dict[str, Any]:
    """Return what a forecaster for inference tells of itself.

    Parameters
    ----------
    content : mapping
        The key ``etesian`` of the checkpoint that it is made from.
    counters : mapping
        What holds ``global_step`` and ``epoch``: the checkpoint.
    source : Path
        The checkpoint's file.
    kernels : sequence of KernelRecord
        The forecaster's own kernels; those of the checkpoint are kept beside them.
    parities : list of Parity
        How they were compared.
    deviation : float, optional
        See :class:`Export`.
    """
    kept = ("format", "version", "config", "variables", "dataset", "coordinates", "run")
    return {
        **{key: content[key] for key in kept},
        "kernels": to_json(kernels),
        "graph": graph_summary(content["graph"]),
        "exported": {
            "checkpoint": str(source), "step": counters["global_step"], "epoch": counters["epoch"],
            "kernels": content["kernels"], "parity": as_json(parities), "deviation": deviation,
        },
    }  # fmt: skip


def weights_of(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the forecaster in a checkpoint of a run, by the forecaster's own names."""
    return {
        key.removeprefix(WEIGHTS): value
        for key, value in checkpoint["state_dict"].items()
        if key.startswith(WEIGHTS) and isinstance(value, Tensor) and not key.endswith("_extra_state")
    }


def stored_config(path: Path, tree: dict[str, Any]) -> Config:
    """Return the config of a checkpoint; what is wrong with it is told of the file."""
    try:
        return validate_config(tree)
    except UserError as error:
        raise UserError.collect(
            [replace(problem, what=f"the config in {path}: {problem.what}") for problem in error.problems]
        ) from error


def uncompiled(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without anything of compilation."""
    tree = copy.deepcopy(config)
    tree["model"].pop("compile", None)
    for section in (tree["model"], *(tree["model"][component] for component in COMPONENTS)):
        for entry in section["layer_kernels"].values():
            entry.pop("_compile_", None)
    return tree


def remapped(tree: dict[str, Any], mappings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a config with other mappings, by component; a component that is not named has none of its own."""
    changed = copy.deepcopy(tree)
    changed["model"]["layer_kernels"] = dict(mappings["model"])
    for component in COMPONENTS:
        changed["model"][component]["layer_kernels"] = dict(mappings.get(component, {}))
    return uncompiled(changed)


def plain_or_own(
    stored: Sequence[KernelRecord],
) -> tuple[dict[str, dict[str, Any]], list[tuple[KernelRecord, list[str]]]]:
    """Return the kernels in plain PyTorch, by component and slot, and those that have none, with the reasons."""
    mappings: dict[str, dict[str, Any]] = {"model": {}}
    own = []
    for record in stored:
        plain, reasons = plain_record(record)
        if reasons:
            own.append((record, reasons))
        else:
            mappings.setdefault(record.component, {})[record.slot] = {"_target_": plain.target, **plain.arguments}
    return mappings, own


def _plain_mapping(path: Path, stored: list[KernelRecord]) -> dict[str, dict[str, Any]]:
    """Return the kernels in plain PyTorch, by component and slot; a slot that nothing uses takes its default."""
    mappings, kept = plain_or_own(stored)
    problems = []
    for record, reasons in kept:
        if not record.note.startswith("not used"):
            what = f"no kernel in plain PyTorch can take the place of {named(record)} of {path}: {'; '.join(reasons)}"
            where = key_of(Difference(record.component, record.slot, record, record))
            mend = "--layer-kernels with a preset of yours that has a kernel of the same family"
            problems.append(Problem(what, where, mend=mend))
    if problems:
        raise UserError.collect(problems)
    return mappings


def _refuse(path: Path, name: str, changed: list[Difference]) -> None:
    problems = []
    for difference in changed:
        reasons = interchangeable(difference.old, difference.new)
        if reasons:
            what = (
                f"{named(difference.new)} of {name} can't take the place of {named(difference.old)}, which made the "
                f"weights of {path}: {'; '.join(reasons)}"
            )
            allowed = f"a kernel of family {difference.old.family!r} with the same constants"
            problems.append(Problem(what, key_of(difference), allowed, f"--layer-kernels {PLAIN}"))
    if problems:
        raise UserError.collect(problems)


def build(
    path: Path, config: Config, content: Mapping[str, Any], kernels: ComponentKernels, weights: Mapping[str, Tensor]
) -> Forecaster:
    """Build a forecaster of a checkpoint with some kernels, and give it the weights."""
    double = config.training.precision == "64-true"
    forecaster = assemble_forecaster(config, variables_of(content), statistics_of(content), graph_of(content), kernels)
    forecaster = forecaster.double() if double else forecaster
    check_weights(path, dict(weights), forecaster)
    own = {name for name, value in forecaster.state_dict().items() if isinstance(value, Tensor)}
    forecaster.load_state_dict({name: weights[name] for name in own})
    return forecaster.eval().requires_grad_(False)


def _compare_models(
    path: Path,
    original: Config,
    content: Mapping[str, Any],
    forecaster: Forecaster,
    weights: Mapping[str, Tensor],
    device: torch.device,
) -> tuple[float | None, str]:
    """Return how far the model is from that of the checkpoint's own kernels, or why that can't be told here."""
    try:
        kernels = resolve_kernels(original.model, preset=None, overrides=[])
        probe_kernels(
            kernels, original.model, device, "64-true" if original.training.precision == "64-true" else "32-true"
        )
    except UserError as error:
        return None, error.problems[0].what
    theirs = build(path, original, content, kernels, weights).to(device)
    variables, parameter = forecaster.variables, next(forecaster.model.parameters())
    grid = content["graph"]["nodes"]["data"]["x"].shape[0]
    shape = (1, forecaster.multistep_input, 1, grid, len(variables.input))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, parameter.dtype)
    with torch.no_grad():
        one, other = theirs.model(x), forecaster.to(device).model(x)
    forecaster.to("cpu")
    return float((one - other).abs().max() / one.abs().max()), ""
