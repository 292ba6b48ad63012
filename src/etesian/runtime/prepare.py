"""What is done to a built model before it runs, in the one order there is.

1. The layer kernels are in it already: they are what it was built from.
2. Selective checkpointing, inside of what is compiled: it chooses by operator, and sees none inside of a compiled
   block. The compiler takes it as a part of the block's graph, keeps what it is told to and fuses the rest.
3. Compilation: the forward of the modules that ``model.compile`` and the slots' ``_compile_`` name.
4. Full checkpointing and offloading, around the compiled forward of a block: a block keeps its inputs and runs its
   compiled forward a second time in the backward pass. So what the compiler can't follow into only splits the block's
   graph; the reverse, compiling around the checkpoint, leaves such a block uncompiled without a word. Where the
   checkpoint is inside all the same (selective, or a module that holds whole blocks), only ``fullgraph: true`` will do:
   :mod:`etesian.runtime.combinations`.
5. Parallelism, in training, once the processes are connected: a model is left its part where processes share it, then
   wrapped by the trainer's strategy. With ``fsdp`` the weights of a unit are gathered by hooks of the module, around
   all of the above: :mod:`etesian.runtime.shards`.
"""

from __future__ import annotations

from torch import nn

from etesian.errors import UserError
from etesian.kernels.resolve import ComponentKernels
from etesian.runtime.checkpointing import apply_activation_checkpointing, apply_selective_checkpointing
from etesian.runtime.combinations import combination_problems
from etesian.runtime.compile import Compilation, compile_modules
from etesian.runtime.entries import collect_entries
from etesian.schema.model import ModelSettings


def prepare_model(
    model: nn.Module, settings: ModelSettings, kernels: ComponentKernels, *, backend: str | None = None
) -> Compilation:
    """Compile and checkpoint what the settings say, in place; no name in the state dict changes.

    Parameters
    ----------
    model : nn.Module
        A built model.
    settings : ModelSettings
        Section ``model``.
    kernels : ComponentKernels
        What the model was built from.
    backend : str, optional
        A compiler to take instead of that of each entry.

    Returns
    -------
    Compilation
        What is compiled; its graphs are counted as they are made.

    Raises
    ------
    UserError
        If an entry names nothing there is, means no module, or one that another compiles, or does not go with the
        activation checkpointing of a component.
    """
    apply_selective_checkpointing(model, settings)
    compilation = compile_modules(model, collect_entries(settings, kernels), backend=backend)
    apply_activation_checkpointing(model, settings)
    problems = [
        problem
        for compiled in compilation.entries
        for problem in combination_problems(model, compiled.entry, compiled.names)
    ]
    if problems:
        raise UserError.collect(problems)
    return compilation
