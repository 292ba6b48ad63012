"""Activation checkpointing: memory for time, chosen a component."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from etesian.model.block import Block
from etesian.schema.model import ModelSettings

COMPONENTS = ("encoder", "processor", "decoder")


def is_checkpointed(module: nn.Module) -> bool:
    """Tell whether a module recomputes its activations."""
    forward = module.__dict__.get("forward")
    return isinstance(forward, partial) and forward.func is checkpoint


def forget_random_states(module: nn.Module) -> int:
    """Let what is checkpointed inside a module keep no random states, which can't be read while a step is recorded.

    Only where no random numbers are drawn are the activations then the same the second time.

    Returns
    -------
    int
        Number of modules that are checkpointed.
    """
    count = 0
    for inside in module.modules():
        forward = inside.__dict__.get("forward")
        forward = getattr(forward, "__wrapped__", forward)  # of a compiled forward: what it was made of
        if isinstance(forward, partial) and forward.func is checkpoint:
            forward.keywords["preserve_rng_state"] = False
            count += 1
    return count


def apply_activation_checkpointing(model: nn.Module, settings: ModelSettings) -> int:
    """Let the blocks of every component with ``gradient_checkpointing`` recompute their activations.

    Each block keeps its inputs only and runs its forward a second time in the backward pass. The bound forward is
    replaced in place, so no name in the state dict changes. A block that is compiled is compiled inside of it, see
    :mod:`etesian.runtime.prepare`. Apply it once.

    Parameters
    ----------
    model : nn.Module
        A built model.
    settings : ModelSettings
        Section ``model``.

    Returns
    -------
    int
        Number of blocks that are checkpointed.

    Raises
    ------
    ValueError
        If a block is checkpointed already, or a component to checkpoint has no blocks.
    """
    count = 0
    for component in COMPONENTS:
        if not getattr(settings, component).gradient_checkpointing:
            continue
        blocks = [module for module in model.get_submodule(component).modules() if isinstance(module, Block)]
        if not blocks:
            raise ValueError(f"{component} has no blocks to checkpoint")
        for block in blocks:
            if is_checkpointed(block):
                raise ValueError(f"a block of {component} is checkpointed already")
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        count += len(blocks)
    return count
