"""A model whose weights, gradients and optimiser state are divided among processes (fully sharded, FSDP2).

A unit is what is made whole together: the encoder, each block of the processor, the decoder; what is left, the learnt
features, is made whole for the whole forward pass. Each process holds a part of every weight; before a unit runs,
forward or backward, its weights are gathered, and its gradients are summed where their part of the weight lies.

What is written and read is whole, under the names and in the order of a model that is not divided: a checkpoint does
not tell how many processes wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from etesian.model.block import Block
from etesian.schema.training import Precision

GATHERED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""In what the weights of a unit are gathered, where that is not their own dtype: what matrix products take anyway."""


def units(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose weights are made whole together, by name, without the model itself."""
    processor = {f"processor.{name}": module for name, module in model.get_submodule("processor").named_modules()
                 if isinstance(module, Block)}  # fmt: skip
    return {"encoder": model.get_submodule("encoder"), **processor, "decoder": model.get_submodule("decoder")}


def precision_policy(precision: Precision) -> MixedPrecisionPolicy:
    """Return how units compute and how their gradients are summed.

    Matrix products and norms compute under autocast as without shards, so inputs are cast by nothing else; gradients
    are summed among processes in the dtype of the weights, 32 bits where the precision is mixed.
    """
    gathered = GATHERED.get(precision)
    summed = None if gathered is None else torch.float32
    return MixedPrecisionPolicy(param_dtype=gathered, reduce_dtype=summed, cast_forward_inputs=False)


def shard_model(
    model: nn.Module, group: ProcessGroup, device: torch.device, precision: Precision, *, reshard_after_forward: bool
) -> None:
    """Divide the weights of a model among the processes of a group, in place; names in its state dict stay.

    Every process gives the same model, with the same weights; apply it after compilation and checkpointing.

    Parameters
    ----------
    model : nn.Module
        A built and prepared model.
    group : ProcessGroup
        The processes.
    device : torch.device
        Where each holds its part.
    precision : str
        ``training.precision``.
    reshard_after_forward : bool
        Whether a unit gives the gathered weights up between its forward and its backward pass.
    """
    mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("data",))
    policy = precision_policy(precision)
    for unit in units(model).values():
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    # learnt features are few numbers and no part of a product: gathered as they are
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward)


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds, sharing its memory; all of it where it is not divided."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def whole(value: Any, *, keep: bool) -> Any:
    """Return a state with every divided tensor gathered on the CPU; every process has to call it.

    Parameters
    ----------
    value : Any
        A tensor, or dicts, lists and tuples of them.
    keep : bool
        Whether this process wants the result; without, divided tensors become empty ones.
    """
    if isinstance(value, DTensor):
        full = value.full_tensor()
        return full.cpu() if keep else full.new_empty(0, device="cpu")
    if isinstance(value, Mapping):
        return {name: whole(item, keep=keep) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item, keep=keep) for item in value)
    return value


def sharded_state(state: Mapping[str, Any], parameters: Iterator[Tensor]) -> dict[str, Any]:
    """Return the whole state of an optimiser divided as its parameters are.

    Parameters
    ----------
    state : mapping
        What ``state_dict`` of an optimiser of a model that is not divided returns.
    parameters : iterator of Tensor
        The parameters of this optimiser, in its order.
    """
    entries = dict(state["state"])
    for number, parameter in enumerate(parameters):
        if number in entries and isinstance(parameter, DTensor):
            entries[number] = {name: _like(value, parameter) for name, value in entries[number].items()}
    return {**state, "state": entries}


def _like(value: Any, parameter: DTensor) -> Any:
    """Return a value of the optimiser divided as a parameter, if it is a number for each of the parameter's."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or value.dim() == 0:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
