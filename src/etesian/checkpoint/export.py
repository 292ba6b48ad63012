"""From a checkpoint of a run to one for inference: a forecaster whose kernels are installed everywhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etesian.checkpoint.content import graph_of, kernels_of, statistics_of, variables_of
from etesian.checkpoint.read import check_weights, load_checkpoint
from etesian.checkpoint.summary import WEIGHTS, graph_summary
from etesian.errors import Problem, UserError
from etesian.files import save_torch
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
    tree = _uncompiled(content["config"])
    original = validate_config(tree)
    config = validate_config(_remapped(tree, _plain_mapping(path, stored) if mapping is None else {"model": mapping}))
    kernels = resolve_kernels(config.model, preset=name, overrides=[])
    changed = differences(stored, kernels.records, config.model)
    _refuse(path, name, changed)
    parities = check_parity(changed, kernels, config.model, device)
    weights = {
        key.removeprefix(WEIGHTS): value
        for key, value in checkpoint["state_dict"].items()
        if key.startswith(WEIGHTS) and isinstance(value, Tensor) and not key.endswith("_extra_state")
    }
    forecaster = _forecaster(path, config, content, kernels, weights)
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
    forecaster.about = {
        **{key: content[key] for key in ("format", "version", "config", "variables")},
        "kernels": to_json(kernels.records),
        "graph": graph_summary(content["graph"]),
        "exported": {
            "checkpoint": str(path), "step": checkpoint["global_step"], "epoch": checkpoint["epoch"],
            "kernels": content["kernels"], "parity": as_json(parities), "deviation": deviation,
        },
    }  # fmt: skip
    return Export(forecaster, kernels.records, parities, deviation, why_not)


def write(exported: Export, output: Path) -> None:
    """Write the forecaster, whole or not at all."""
    save_torch(output, exported.forecaster)


def _uncompiled(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without anything of compilation."""
    tree = copy.deepcopy(config)
    tree["model"].pop("compile", None)
    for section in (tree["model"], *(tree["model"][component] for component in COMPONENTS)):
        for entry in section["layer_kernels"].values():
            entry.pop("_compile_", None)
    return tree


def _remapped(tree: dict[str, Any], mappings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a config with other mappings, by component; a component that is not named has none of its own."""
    changed = copy.deepcopy(tree)
    changed["model"]["layer_kernels"] = dict(mappings["model"])
    for component in COMPONENTS:
        changed["model"][component]["layer_kernels"] = dict(mappings.get(component, {}))
    return _uncompiled(changed)


def _plain_mapping(path: Path, stored: list[KernelRecord]) -> dict[str, dict[str, Any]]:
    """Return the kernels in plain PyTorch, by component and slot; a slot that nothing uses takes its default."""
    mappings: dict[str, dict[str, Any]] = {"model": {}}
    problems = []
    for record in stored:
        plain, reasons = plain_record(record)
        if not reasons:
            entry = {"_target_": plain.target, **plain.arguments}
            mappings.setdefault(record.component, {})[record.slot] = entry
        elif not record.note.startswith("not used"):
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


def _forecaster(
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
    theirs = _forecaster(path, original, content, kernels, weights).to(device)
    variables, parameter = forecaster.variables, next(forecaster.model.parameters())
    grid = content["graph"]["nodes"]["data"]["x"].shape[0]
    shape = (1, forecaster.multistep_input, 1, grid, len(variables.input))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, parameter.dtype)
    with torch.no_grad():
        one, other = theirs.model(x), forecaster.to(device).model(x)
    forecaster.to("cpu")
    return float((one - other).abs().max() / one.abs().max()), ""
