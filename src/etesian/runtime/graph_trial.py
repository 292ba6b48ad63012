"""Whether a training step can be recorded, before any data are read: on a stand-in of the model, in a second or so."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from etesian.errors import Problem, UserError
from etesian.kernels.machine import Machine
from etesian.kernels.resolve import ComponentKernels
from etesian.model.miniature import build_miniature, miniature_input, miniature_settings
from etesian.runtime.checkpointing import apply_activation_checkpointing, apply_selective_checkpointing
from etesian.runtime.device import GraphRecorder
from etesian.runtime.entries import Entry, collect_entries
from etesian.runtime.step_graphs import KEY, Recorder, StepGraphs
from etesian.schema.model import ModelSettings
from etesian.schema.training import Precision

_WITH_GRAPHS = ("reduce-overhead", "max-autotune")
_OPTION = "triton.cudagraphs"


def try_step_graphs(
    settings: ModelSettings,
    kernels: ComponentKernels,
    device: torch.device,
    precision: Precision,
    recorder: Recorder | None = None,
) -> None:
    """Record a step of a stand-in of the model, as ``training.cuda_graphs`` asks for the model itself.

    What is to be compiled is left as it is: that would take minutes.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model``.
    kernels : ComponentKernels
        The kernels of the experiment.
    device : torch.device
        The GPU of the run.
    precision : str
        ``training.precision``.
    recorder : Recorder, optional
        What records; CUDA graphs when left out.

    Raises
    ------
    UserError
        If a compiler is asked for CUDA graphs of its own, or the stand-in can't be recorded.
    """
    problems = _recorded_twice(collect_entries(settings, kernels))
    if problems:
        raise UserError.collect(problems)
    machine = Machine(device, precision)
    cuda = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=cuda, device_type=device.type):
        model = build_miniature(settings, kernels).to(device, machine.parameters)
        small = miniature_settings(settings)
        apply_selective_checkpointing(model, small)
        apply_activation_checkpointing(model, small)

        def loss(x: torch.Tensor) -> torch.Tensor:
            with machine.context():
                return model(x).float().square().mean()

        graphs = StepGraphs(model, loss, lambda loss: loss.backward(), recorder or GraphRecorder(device))
        graphs.run(miniature_input(settings, machine.parameters).to(device))
        graphs.forget()


def _recorded_twice(entries: Sequence[Entry]) -> list[Problem]:
    """Return the compilers that record CUDA graphs of their own, which can't be done while a step is recorded."""
    problems = []
    for entry in entries:
        options = entry.options
        place = f"{entry.where}.options" if "[" in entry.where else entry.where
        found = [("backend", f"backend {options.backend!r}")] if options.backend == "cudagraphs" else []
        found += [("mode", f"mode {options.mode!r}")] if options.mode in _WITH_GRAPHS else []
        found += [("options", f"option {name!r}") for name, value in options.options.items()
                  if name.replace("-", "_") == _OPTION and value]  # fmt: skip
        problems += [
            Problem(
                f"{entry.shown}: {what} records CUDA graphs of its own, and {KEY}=true records the whole step",
                f"{place}.{key}",
                f"without {what}; mode max-autotune-no-cudagraphs",
                f"leave it out, or {KEY}=false",
            )
            for key, what in found
        ]
    return problems
