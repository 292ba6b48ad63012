"""Whether a model can be divided among processes as ``training.strategy.kind: fsdp`` does, before any data are read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from etesian.errors import Problem, UserError
from etesian.kernels.machine import Machine
from etesian.kernels.record import config_key
from etesian.kernels.resolve import ComponentKernels
from etesian.model.miniature import build_miniature, miniature_input
from etesian.runtime.entries import collect_entries, match_entries
from etesian.runtime.shards import GATHERED, units
from etesian.schema.model import ModelSettings
from etesian.schema.training import Precision

KEY = "training.strategy.kind"
_MEND = f"{KEY}=ddp"


def try_shards(settings: ModelSettings, kernels: ComponentKernels, device: torch.device, precision: Precision) -> None:
    """Look at a stand-in of the model, and run it with the weights of its units as they would be gathered.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    kernels : ComponentKernels
        The kernels of the experiment.
    device : torch.device
        The device of the run.
    precision : str
        ``training.precision``.

    Raises
    ------
    UserError
        If a compiled module holds units whose weights are gathered while it runs, if a kernel has a weight that can't
        be divided, or shares one among units, or if it does not run with weights of 16 bits in mixed precision.
    """
    machine = Machine(device, precision)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        model = build_miniature(settings, kernels).to(device, machine.parameters)
        problems = [*_compiled_around(model, settings, kernels), *_indivisible(model)]
        if problems:
            raise UserError.collect(problems)
        if precision in GATHERED:
            _run_gathered(model, settings, machine)


def _compiled_around(model: nn.Module, settings: ModelSettings, kernels: ComponentKernels) -> Iterator[Problem]:
    """Yield the entries that compile a module with whole units inside: nothing is gathered inside a compiled one."""
    entries = collect_entries(settings, kernels)
    for entry, modules in zip(entries, match_entries(model, entries), strict=True):
        inside = (
            (name, unit) for name in modules for unit in units(model) if name == "" or unit.startswith(f"{name}.")
        )
        found = next(inside, None)
        if found is not None:
            name, unit = found
            yield Problem(
                f"{entry.shown} compiles {name or 'the whole model'}, and {KEY}='fsdp' gathers the weights of {unit} "
                "when it is called: inside of what is compiled they would not be gathered",
                entry.where,
                "with fsdp: encoder, decoder, blocks and what is inside of them",
                f"model/compile=components or blocks, or {_MEND}",
            )


def _indivisible(model: nn.Module) -> Iterator[Problem]:
    """Yield the weights without an axis to divide, and those that two units share."""
    owners: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        unit = next((unit for unit in units(model) if name.startswith(f"{unit}.")), "the model itself")
        owner = owners.setdefault(parameter, unit)
        where = _slot_key(model, name)
        if parameter.dim() == 0:
            what = f"{KEY}='fsdp' divides weights along their first axis, and {name} has none"
            yield Problem(what, where, "weights of shape (1,) or more", f"another kernel, or {_MEND}")
        elif owner != unit:
            what = f"{name} is a weight of {owner} too, and {KEY}='fsdp' gathers the weights of each by themselves"
            yield Problem(what, where, "a weight for each layer", f"another kernel, or {_MEND}")


def _slot_key(model: nn.Module, name: str) -> str:
    """Return the config key of the slot that made the layer of a weight."""
    path, where = "", KEY
    for part in name.split(".")[:-1]:
        path = f"{path}.{part}".lstrip(".")
        made_by = getattr(model.get_submodule(path), "made_by", None)
        where = where if made_by is None else config_key(*made_by)
    return where


def _run_gathered(model: nn.Module, settings: ModelSettings, machine: Machine) -> None:
    """Run the stand-in forward and backward with the weights of its units in 16 bits.

    Raises
    ------
    UserError
        If it fails, or what comes is no number.
    """
    gathered = GATHERED[machine.precision]
    for unit in units(model).values():
        for parameter in unit.parameters():
            parameter.data = parameter.data.to(gathered)
    try:
        with machine.context():
            y = model(miniature_input(settings, machine.parameters).to(machine.device))
        y.float().square().mean().backward()
        finite = bool(y.isfinite().all())
    except Exception as cause:  # of a kernel
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        why = f"{type(cause).__name__}: {' '.join(lines[:2])}"
        raise _not_in_16_bits(machine, why) from cause
    if not finite:
        raise _not_in_16_bits(machine, "what it returns is NaN or infinite")


def _not_in_16_bits(machine: Machine, why: str) -> UserError:
    what = (
        f"{KEY}='fsdp' gathers weights in {str(GATHERED[machine.precision]).removeprefix('torch.')} with "
        f"training.precision={machine.precision!r}, and a stand-in of the model does not run with them: {why}"
    )
    return UserError(what, where=KEY, mend=f"other kernels, training.precision=32-true, or {_MEND}")
