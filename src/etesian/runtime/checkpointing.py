"""Activation checkpointing: what a block keeps for the backward pass, chosen a component.

``none`` is torch's own: all of it. ``full`` keeps the inputs of a block and runs its forward a second time.
``selective`` keeps the results of the operators of :mod:`etesian.runtime.kept_operators` and computes what lies between
them again. ``offload`` keeps all of it in the host's memory, see :mod:`etesian.runtime.offload`.
"""

from __future__ import annotations

import logging
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from etesian.model.block import Block
from etesian.runtime.kept_operators import keep_products
from etesian.runtime.offload import OffloadChain, run_offloaded
from etesian.schema.model import CheckpointingPolicy, ModelSettings

COMPONENTS = ("encoder", "processor", "decoder")


def checkpointing_of(module: nn.Module) -> CheckpointingPolicy:
    """Return what was applied to a module, whether its forward is compiled inside of it or around it."""
    forward = module.__dict__.get("forward")
    forward = getattr(forward, "__wrapped__", forward)  # of a compiled forward: what it was made of
    if not isinstance(forward, partial):
        return "none"
    if forward.func is run_offloaded:
        return "offload"
    if forward.func is not checkpoint:
        return "none"
    return "selective" if "context_fn" in forward.keywords else "full"


def is_checkpointed(module: nn.Module) -> bool:
    """Tell whether a module recomputes its activations, all or some."""
    return checkpointing_of(module) in ("full", "selective")


def describe_checkpointing(settings: ModelSettings) -> str:
    """Return ``processor selective, decoder full``; empty where every component keeps all."""
    policies = {name: getattr(settings, name).gradient_checkpointing for name in COMPONENTS}
    return ", ".join(f"{name} {policy}" for name, policy in policies.items() if policy != "none")


def apply_selective_checkpointing(model: nn.Module, settings: ModelSettings) -> int:
    """Let the blocks of every component with ``selective`` keep the results of some operators only.

    Apply it before anything is compiled: the compiler sees the operators, and no operator is seen inside of what is
    compiled. Parameters, result and errors are those of :func:`apply_activation_checkpointing`.
    """
    blocks = _blocks(model, settings, ("selective",))
    for block in blocks:
        for module in block.modules():
            if hasattr(module, "as_one_operator"):
                module.as_one_operator = True  # type: ignore[assignment]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=keep_products)
    if blocks:
        logging.getLogger("torch._higher_order_ops.wrap").addFilter(_is_no_advice)
    return len(blocks)


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
    """Let the blocks of every component with ``full`` or ``offload`` keep nothing on the device but their inputs.

    The bound forward is replaced in place, so no name in the state dict changes. A block that is compiled is compiled
    inside of it, see :mod:`etesian.runtime.prepare`. Apply it once.

    Parameters
    ----------
    model : nn.Module
        A built model.
    settings : ModelSettings
        Section ``model``.

    Returns
    -------
    int
        Number of blocks that it was applied to.

    Raises
    ------
    ValueError
        If a block is checkpointed already, or a component to checkpoint has no blocks.
    """
    chain = OffloadChain()
    blocks = _blocks(model, settings, ("full", "offload"))
    for block, policy in blocks.items():
        if policy == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        else:
            block.forward = partial(run_offloaded, chain, block.forward, block)
    return len(blocks)


def _blocks(
    model: nn.Module, settings: ModelSettings, policies: tuple[CheckpointingPolicy, ...]
) -> dict[Block, CheckpointingPolicy]:
    """Return the blocks of the components that have one of the policies."""
    found: dict[Block, CheckpointingPolicy] = {}
    for component in COMPONENTS:
        policy = getattr(settings, component).gradient_checkpointing
        if policy not in policies:
            continue
        blocks = [module for module in model.get_submodule(component).modules() if isinstance(module, Block)]
        if not blocks:
            raise ValueError(f"{component} has no blocks to checkpoint")
        if any(checkpointing_of(block) != "none" for block in blocks):
            raise ValueError(f"a block of {component} is checkpointed already")
        found |= dict.fromkeys(blocks, policy)
    return found


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Drop torch's reminder to look for operators that change a kept result in place: the door has looked."""
    return "context_fn is passed" not in record.getMessage()
