"""Whether selective checkpointing would keep what it is meant to, before any data are read.

A stand-in of the model runs forward and backward with it, which takes less than a second. Every kernel whose work is to
be kept has to call an operator that is; a kernel in which none is seen would be computed twice without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from etesian.errors import Problem, UserError
from etesian.kernels.machine import Machine
from etesian.kernels.record import config_key
from etesian.kernels.resolve import ComponentKernels
from etesian.model.block import Block
from etesian.model.miniature import build_miniature, miniature_input, miniature_settings
from etesian.runtime.checkpointing import COMPONENTS, apply_selective_checkpointing
from etesian.runtime.kept_operators import ATTENTION, PRODUCTS, operator_name
from etesian.schema.model import ModelSettings
from etesian.schema.training import Precision

DUE = {"Linear": PRODUCTS, "MLP": PRODUCTS, "Attention": ATTENTION, "GraphAttention": ATTENTION}
"""What a kernel of a slot calls, so that its work is kept."""


def try_checkpointing(
    settings: ModelSettings, kernels: ComponentKernels, device: torch.device, precision: Precision
) -> None:
    """Try the components with ``gradient_checkpointing: selective``; without any, nothing is done.

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
        If a kernel calls no operator whose results are kept, or the stand-in does not run: a kernel changes such a
        result in place.
    """
    chosen = [name for name in COMPONENTS if getattr(settings, name).gradient_checkpointing == "selective"]
    if not chosen:
        return
    machine = Machine(device, precision)
    small = miniature_settings(settings)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        model = build_miniature(settings, kernels).to(device, machine.parameters)
        calls = _watch(model, chosen)
        apply_selective_checkpointing(model, small)
        try:
            with machine.context(), _Watch(calls):
                y = model(miniature_input(settings, machine.parameters).to(device))
            y.float().square().mean().backward()
        except Exception as cause:  # of a kernel, or of torch
            raise _does_not_run(chosen[0], cause) from cause
    problems = {(call.component, call.slot): _unseen(call) for call in calls if call.count and not call.kept}
    if problems:
        raise UserError.collect(list(problems.values()))


@dataclass
class _Calls:
    """What a kernel of a block did: how often it was called, and whether it called an operator that is kept."""

    module: nn.Module
    component: str
    slot: str
    count: int = 0
    running: bool = False
    kept: bool = False

    def begin(self, *_: Any) -> None:
        self.running, self.count = True, self.count + 1

    def end(self, *_: Any) -> None:
        self.running = False


class _Watch(TorchDispatchMode):
    """Notes which kernels call an operator that is kept."""

    def __init__(self, calls: list[_Calls]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operator_name(func)
        for call in self.calls:
            call.kept |= call.running and name in DUE[call.slot]
        return func(*args, **(kwargs or {}))


def _watch(model: nn.Module, components: list[str]) -> list[_Calls]:
    """Let the kernels of some components' blocks tell when they run."""
    calls = []
    for component in components:
        blocks = [module for module in model.get_submodule(component).modules() if isinstance(module, Block)]
        for layer in (layer for block in blocks for layer in block.modules()):
            slot = getattr(layer, "made_by", ("", ""))[1]
            if slot in DUE:
                call = _Calls(layer, component, slot)
                layer.register_forward_pre_hook(call.begin)
                layer.register_forward_hook(call.end)
                calls.append(call)
    return calls


def _unseen(call: _Calls) -> Problem:
    kind = f"{type(call.module).__module__}.{type(call.module).__qualname__}"
    key = f"model.{call.component}.gradient_checkpointing"
    what = (
        f"{key}='selective' keeps the results of operators that it knows by name, and {kind} in the slot {call.slot} "
        "calls none of them: its work would be done twice"
    )
    owner = getattr(call.module, "made_by", ("model", ""))[0]
    allowed = f"kernels that call one of {', '.join(sorted(DUE[call.slot]))}"
    return Problem(what, key, allowed, f"{key}=full or none, or another kernel in {config_key(owner, call.slot)}")


def _does_not_run(component: str, cause: Exception) -> UserError:
    key = f"model.{component}.gradient_checkpointing"
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    in_place = "has been mutated" in str(cause)
    why = "a kernel changes a result in place that is to be kept" if in_place else "a stand-in of the model fails"
    what = f"{key}='selective' does not run with these kernels: {why}: {type(cause).__name__}: {' '.join(lines[:2])}"
    return UserError(what, where=key, mend=f"{key}=full or none, or other kernels")
