"""How a slot is built and called on one of its shapes, with fresh random inputs, and what that must cost at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.bench.shapes import Shape
from etesian.kernels.machine import Machine
from etesian.kernels.resolve import LayerKernels
from etesian.schema.model import ModelSettings

Inputs = dict[str, Tensor | None]
"""By name, in the order of the call; None is passed as None."""

MOST_SETS = 16
"""Input sets that take turns at most."""


@dataclass(frozen=True)
class Case:
    """One slot on one shape.

    Attributes
    ----------
    slot : str
        Name of the slot.
    shape : Shape
        Where it is called.
    build : callable
        Makes the layer of a mapping of kernels.
    inputs : mapping
        Name to (shape, dtype) of each tensor that the layer is called with, in order; None is passed as None.
    out_shape : tuple of int
        Shape of the result.
    out_dtype : torch.dtype
        The narrowest that a kernel may return: what the floor counts.
    edges : Edges, optional
        Passed after the tensors; on the device.
    window_size : int, optional
        Of attention among nodes.
    """

    slot: str
    shape: Shape
    build: Callable[[LayerKernels], nn.Module]
    inputs: Mapping[str, tuple[tuple[int, ...], torch.dtype] | None]
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype
    edges: Edges | None = None
    window_size: int | None = None

    def call(self, layer: nn.Module, inputs: Inputs) -> Tensor:
        """Call a layer."""
        return layer(*inputs.values(), *([] if self.edges is None else [self.edges]))

    def random_inputs(self, seed: int, device: torch.device) -> Inputs:
        """Return leaves that want gradients."""
        generator = torch.Generator(device).manual_seed(seed)
        made: Inputs = {}
        for name, spec in self.inputs.items():
            if spec is None:
                made[name] = None
                continue
            made[name] = self._random(spec[0], generator).to(spec[1]).requires_grad_()
        return made

    def random_cotangent(self, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return what the backward pass starts from."""
        generator = torch.Generator(device).manual_seed(1_000_003 + seed)
        return self._random(self.out_shape, generator).to(dtype)

    def _random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return random numbers; what attends among nodes lies in memory as linear layers wrote it, [B, N, H, C]."""
        if self.slot == "Attention":
            copies, heads, nodes, channels = shape
            stored = torch.randn((copies, nodes, heads, channels), generator=generator, device=generator.device)
            return stored.transpose(1, 2)
        return torch.randn(shape, generator=generator, device=generator.device)

    @property
    def input_bytes(self) -> int:
        """Bytes of one input set."""
        return sum(math.prod(spec[0]) * spec[1].itemsize for spec in self.inputs.values() if spec is not None)

    def set_count(self, cache_bytes: int) -> int:
        """Return how many input sets take turns, so that none of them is found in the device's cache again."""
        return max(1, min(MOST_SETS, -(-4 * cache_bytes // max(1, self.input_bytes))))

    def floor_bytes(self, parameter_bytes: int) -> tuple[int, int]:
        """Return the bytes to move in a forward pass, and in a forward and a backward pass.

        Forward: inputs and parameters are read, the result is written. Backward: inputs, parameters and the gradient
        of the result are read, the gradients of inputs and parameters are written.
        """
        result = math.prod(self.out_shape) * self.out_dtype.itemsize
        read = self.input_bytes + parameter_bytes
        return read + result, 3 * read + 2 * result

    def flops(self, layer: nn.Module) -> tuple[int, int]:
        """Return the operations of the matrix products over all rows, forward, and forward and backward."""
        if self.slot == "Attention":
            copies, heads, nodes, channels = self.out_shape
            seen = nodes if self.window_size is None else min(nodes, 2 * self.window_size + 1)
            forward = 4 * copies * heads * nodes * seen * channels  # q k^T and alpha v
            return forward, 3 * forward  # the backward pass has four such products; recomputed scores not counted
        if self.slot not in ("Linear", "MLP"):
            return 0, 0
        weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)
        forward = 2 * self.shape.rows * weights
        return forward, 3 * forward


def make_case(
    slot: str, shape: Shape, settings: ModelSettings, kernels: LayerKernels, returned: Mapping[str, torch.dtype],
    machine: Machine,
) -> Case:  # fmt: skip
    """Return how the model calls a slot on a shape.

    Parameters
    ----------
    slot : str
        Name of the slot.
    shape : Shape
        Where.
    settings : ModelSettings
        Section ``model``.
    kernels : LayerKernels
        Of the experiment: whether its Linear has a bias.
    returned : mapping
        The dtypes that its norms return; see :func:`returned_dtypes`.
    machine : Machine
        Device and precision.
    """
    channels, heads, rows, low = settings.num_channels, shape.block.num_heads, shape.rows, machine.products
    hidden, normed = int(channels * shape.block.mlp_hidden_ratio), returned.get("LayerNorm", low)
    wide, of_heads = (rows, channels), (rows, heads, channels // heads)
    case = partial(Case, slot, shape)
    match slot:
        case "Linear":
            return case(lambda k: k.Linear(channels, channels), {"input": (wide, normed)}, wide, low)
        case "LayerNorm":
            return case(lambda k: k.LayerNorm(channels), {"input": (wide, low)}, wide, low)
        case "Activation":
            shape_inside = (rows, hidden)
            return case(lambda k: k.Activation(), {"input": (shape_inside, low)}, shape_inside, low)
        case "QueryNorm" | "KeyNorm":
            build = lambda k: getattr(k, slot)(channels // heads)  # noqa: E731
            return case(build, {"input": (of_heads, low)}, of_heads, low)
        case "MLP":
            build = lambda k: k.MLP(channels, hidden, channels, layer_kernels=k)  # noqa: E731
            return case(build, {"input": (wide, normed)}, wide, low)
        case "GraphAttention":
            return _graph_attention(case, shape, channels, kernels, returned, machine)
        case "Attention":
            window = settings.window_size("processor")
            among = (shape.copies, heads, rows // shape.copies, channels // heads)
            dtypes = _dtypes_of_heads(shape, returned, low)
            build = lambda k: k.Attention(heads, channels // heads, window_size=window)  # noqa: E731
            return case(build, {name: (among, d) for name, d in dtypes.items()}, among, low, window_size=window)
    raise ValueError(f"no case for the slot {slot}")


def _graph_attention(
    case: Callable[..., Case], shape: Shape, channels: int, kernels: LayerKernels,
    returned: Mapping[str, torch.dtype], machine: Machine,
) -> Case:  # fmt: skip
    assert shape.edges is not None
    heads, low, parameters = shape.block.num_heads, machine.products, machine.parameters
    edges = shape.edges.to(machine.device)
    dst, src = ((nodes, heads, channels // heads) for nodes in (edges.num_dst, edges.num_src))
    dtypes = _dtypes_of_heads(shape, returned, low)
    inputs = {
        "query": (dst, dtypes["query"]),
        "key": (src, dtypes["key"]),
        "value": (src, dtypes["value"]),
        "edge_attr": ((edges.num_edges, shape.edge_features), parameters),
        "edge_weight": ((channels, shape.edge_features), parameters),
        "edge_bias": ((channels,), parameters) if kernels.Linear.record.arguments.get("bias", True) else None,
    }
    return case(lambda k: k.GraphAttention(heads, channels // heads), inputs, dst, low, edges)


def _dtypes_of_heads(shape: Shape, returned: Mapping[str, torch.dtype], low: torch.dtype) -> dict[str, torch.dtype]:
    normed = returned if shape.block.qk_norm else {}
    return {"query": normed.get("QueryNorm", low), "key": normed.get("KeyNorm", low), "value": low}


def returned_dtypes(kernels: LayerKernels, settings: ModelSettings, machine: Machine) -> dict[str, torch.dtype]:
    """Return what the norms of an experiment return: what the next slot is called with.

    A norm that does not run here is left out; it is reported where it is measured.
    """
    widths = {"LayerNorm": settings.num_channels}
    block: Any = settings.processor
    widths |= dict.fromkeys(("QueryNorm", "KeyNorm"), settings.num_channels // block.num_heads)
    found = {}
    for slot, width in widths.items():
        try:
            layer = getattr(kernels, slot)(width).to(machine.device, machine.parameters)
            with machine.context(), torch.no_grad():
                found[slot] = layer(torch.randn(2, width, device=machine.device).to(machine.products)).dtype
        except Exception:  # whatever a kernel raises
            continue
    return found
