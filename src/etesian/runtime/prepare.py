"""What is done to a built model before it runs, in the one order there is.

1. The layer kernels are in it already: they are what it was built from.
2. Compilation: the forward of the modules that ``model.compile`` and the slots' ``_compile_`` name.
3. Activation checkpointing, around the compiled forward of a block: a block keeps its inputs and runs its compiled
   forward a second time in the backward pass. So what the compiler can't follow into only splits the block's graph;
   the reverse, compiling around the checkpoint, leaves such a block uncompiled without a word. A module that holds
   whole blocks, such as the model itself, is compiled around them all the same, with ``fullgraph: true`` only.
4. Nothing yet: data parallelism is the trainer's.
"""

from __future__ import annotations

from torch import nn

from etesian.errors import UserError
from etesian.kernels.resolve import ComponentKernels
from etesian.runtime.checkpointing import apply_activation_checkpointing
from etesian.runtime.compile import Compilation, compile_modules
from etesian.runtime.entries import checkpointed_inside, collect_entries
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
        If an entry names nothing there is, means no module, or one that another compiles.
    """
    compilation = compile_modules(model, collect_entries(settings, kernels), backend=backend)
    apply_activation_checkpointing(model, settings)
    problems = [
        problem
        for compiled in compilation.entries
        for problem in checkpointed_inside(model, compiled.entry, compiled.names)
    ]
    if problems:
        raise UserError.collect(problems)
    return compilation
