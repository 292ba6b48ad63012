"""What encoder, processor and decoder cost: parameters, operations, and what is kept for the backward pass.

Each component runs by itself, forward and backward, on tensors that have shapes and dtypes but no numbers, so any size
can be looked at on any machine. Operations are those of matrix products and of attention, two for each multiplication
with its addition; norms, activations and sums over edges move memory and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import etesian.kernels.factored_ops  # noqa: F401  # the operators that are counted below
from etesian.kernels.machine import Machine
from etesian.runtime.checkpointing import COMPONENTS, apply_activation_checkpointing, apply_selective_checkpointing
from etesian.schema.model import ModelSettings


@dataclass(frozen=True)
class Cost:
    """What a part of a model costs in a step.

    Attributes
    ----------
    part : str
        ``encoder``, ``processor``, ``decoder``, or ``rest``.
    kind : str
        Its kind; empty for the rest.
    parameters : int
        Numbers that learn.
    kept_bytes : int
        What its forward pass leaves for the backward pass, the result not counted.
    forward_flops, flops : int
        Operations of a forward pass, and of forward and backward pass together, with what is computed a second time.
    """

    part: str
    kind: str
    parameters: int
    kept_bytes: int = 0
    forward_flops: int = 0
    flops: int = 0


def model_costs(model: nn.Module, settings: ModelSettings, shape: tuple[int, ...], machine: Machine) -> list[Cost]:
    """Count what the parts of a model cost; the model is of no use afterwards.

    Parameters
    ----------
    model : nn.Module
        A built model, neither compiled nor checkpointed, on the CPU.
    settings : ModelSettings
        Section ``model``: its activation checkpointing counts. What is offloaded counts as computed a second time, for
        it is not on the device either.
    shape : tuple of int
        Of the model's input, [B, T, E, G, V_in].
    machine : Machine
        The CPU, and the precision of the run.

    Returns
    -------
    list of Cost
        Encoder, processor, decoder, and the rest: learnt features of nodes.
    """
    full = {
        name: getattr(settings, name).model_copy(update={"gradient_checkpointing": "full"})
        for name in COMPONENTS
        if getattr(settings, name).gradient_checkpointing == "offload"
    }
    model.to(machine.parameters)
    for module in model.modules():
        if hasattr(module, "as_one_operator"):
            module.as_one_operator = True  # type: ignore[assignment]  # its operations are counted as a whole
    apply_selective_checkpointing(model, settings)
    apply_activation_checkpointing(model, settings.model_copy(update=full))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, machine.context():
        _take_numbers_away(model, mode)
        inputs = _inputs(model, torch.empty(shape, dtype=machine.parameters))
        costs = [_component(model, name, getattr(settings, name).kind, inputs[name]) for name in COMPONENTS]
    rest = sum(p.numel() for p in model.parameters()) - sum(cost.parameters for cost in costs)
    return [*costs, Cost("rest", "", rest)]


def _take_numbers_away(model: nn.Module, mode: FakeTensorMode) -> None:
    """Put tensors without numbers in the place of parameters and buffers."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = mode.from_tensor(tensor)  # type: ignore[assignment]


def _inputs(model: nn.Module, x: Tensor) -> dict[str, tuple[Any, ...]]:
    """Return what each component is called with."""
    seen: dict[str, tuple[Any, ...]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _, arguments: seen.update({name: arguments})

    handles = [model.get_submodule(name).register_forward_pre_hook(note(name)) for name in COMPONENTS]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return seen


def _component(model: nn.Module, name: str, kind: str, arguments: tuple[Any, ...]) -> Cost:
    component = model.get_submodule(name)
    arguments = tuple(a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in arguments)
    forward, backward = (FlopCounterMode(display=False, custom_mapping=FORMULAS) for _ in range(2))
    with forward, _Allocated() as allocated:
        result = component(*arguments)
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    kept = allocated.bytes_alive(besides=results)
    with backward:
        torch.autograd.backward(results, [torch.ones_like(leaf) for leaf in results])
    parameters = sum(parameter.numel() for parameter in component.parameters())
    before = forward.get_total_flops()
    return Cost(name, kind, parameters, kept, before, before + backward.get_total_flops())


class _Allocated(TorchDispatchMode):
    """Remembers the memory that operators return, without keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _key(leaf) not in given:  # a view is no new memory
                storage = leaf.untyped_storage()
                self.storages[_key(leaf)] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def bytes_alive(self, besides: list[Tensor]) -> int:
        """Return the bytes of what is still there, some tensors left out."""
        out = {_key(tensor) for tensor in besides}
        return sum(size for key, (storage, size) in self.storages.items() if key not in out and not storage.expired())


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _attention(query: Any, key: Any, value: Any, *args: Any, **keywords: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **keywords: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))


def _graph_attention(query: Any, key: Any, value: Any, edge_attr: Any, *args: Any, **keywords: Any) -> int:
    """Return the operations of scores and sums along the edges, and of the edge projection on either side of them."""
    nodes, features = prod(query), edge_attr[1]
    edges = edge_attr[0] * query[1]  # edges times heads
    return 4 * edges * (query[2] + features) + 4 * nodes * features


def _graph_attention_backward(grad: Any, alpha: Any, *inputs: Any, **keywords: Any) -> int:
    return 2 * _graph_attention(*inputs)


FORMULAS: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.etesian.factored_graph_attention: _graph_attention,
    torch.ops.etesian.factored_graph_attention_backward: _graph_attention_backward,
}
"""Operations of the operators that torch does not count, from the shapes of what they are called with."""
