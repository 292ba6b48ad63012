"""Whether the resolved kernels run: each is built and run forward and backward, small, as the run will run it.

Many kernels import and build on machines that can't run them; only a call tells.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from etesian.errors import Problem, UserError
from etesian.graph.edges import Edges
from etesian.kernels.arguments import in_place, without_annotations
from etesian.kernels.libraries import EXTRAS
from etesian.kernels.machine import Machine as _Machine
from etesian.kernels.record import KernelRecord, config_key
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, KernelFactory, LayerKernels
from etesian.kernels.slots import SLOTS
from etesian.schema.describe import show
from etesian.schema.model import BlockSettings, ModelSettings
from etesian.schema.training import Precision

NODES, FEATURES = 6, 8
"""Rows of every input, and what a Linear makes of the channels of the model."""

BATCH = 2
"""Copies of the nodes that attention among them gets."""

_ORDER = ("LayerNorm", "Linear", "Activation", "QueryNorm", "KeyNorm", "MLP", "GraphAttention", "Attention")
"""A slot after those whose results it is called with."""


class _Failed(Exception):
    """What a kernel did wrong.

    Attributes
    ----------
    own_fault : bool
        Whether the kernel itself has to be mended.
    called : bool
        Whether a user has to know how the slot calls a kernel.
    writes : bool
        Whether it is that the kernel works in place.
    """

    def __init__(self, what: str, *, own_fault: bool, called: bool = False, writes: bool = False) -> None:
        self.own_fault, self.called, self.writes = own_fault, called, writes
        super().__init__(what)


@dataclass(frozen=True)
class _Case:
    """How one slot is built and called, and what has to come back.

    Attributes
    ----------
    build : callable
        Returns the layer.
    inputs : mapping
        Name to (shape, dtype) of each tensor that the layer is called with, in order; None is passed as None.
    shape : tuple of int
        Shape of the result.
    edges : Edges, optional
        Passed after the tensors.
    transposed : bool
        Whether the tensors lie in memory with axes 1 and 2 exchanged.
    """

    build: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[tuple[int, ...], torch.dtype] | None]
    shape: tuple[int, ...]
    edges: Edges | None = None
    transposed: bool = False


def probe_kernels(
    kernels: ComponentKernels, settings: ModelSettings, device: torch.device, precision: Precision
) -> None:
    """Run every kernel that the model uses, forward and backward.

    The channels and heads are those of the model, everything else is small. States of random generators are kept.

    Parameters
    ----------
    kernels : ComponentKernels
        What was resolved from `settings`.
    settings : ModelSettings
        Section ``model``.
    device : torch.device
        The device of the run.
    precision : str
        ``training.precision``: what runs under autocast, or in float64, is probed so.

    Raises
    ------
    UserError
        With every kernel that can't be built or run there, or that writes to its input, returns what is no tensor, or a
        tensor of another shape, dtype or device than the slot's, or NaN, or passes no gradient, or NaN, to an input or
        a parameter. An MLP whose Linear or Activation fails is not looked at: its failure would be theirs.
    """
    machine = _Machine(device, precision)
    problems: list[Problem] = []
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        for component in COMPONENTS:
            problems.extend(_probe_component(getattr(kernels, component), settings, component, machine))
    if problems:
        raise UserError.collect(dict.fromkeys(problems))


def slot_cases(
    slot: str,
    kernels: LayerKernels,
    settings: ModelSettings,
    component: str,
    device: torch.device,
    precision: Precision,
) -> tuple[_Machine, list[_Case]]:
    """Return how the model builds and calls a slot of a component, and the dtypes and context of the precision."""
    machine = _Machine(device, precision)
    return machine, _cases(slot, kernels, settings, component, {}, machine)


def _probe_component(
    kernels: LayerKernels, settings: ModelSettings, component: str, machine: _Machine
) -> Iterator[Problem]:
    returned: dict[str, torch.dtype] = {}
    failed: set[str] = set()
    for slot in _ORDER:
        if not settings.uses(component, slot):
            continue
        if slot == "MLP" and failed & {"Linear", "Activation"}:
            continue
        try:
            for case in _cases(slot, kernels, settings, component, returned, machine):
                returned[slot] = _run(case, machine)
        except _Failed as failure:
            failed.add(slot)
            yield _problem(getattr(kernels, slot), failure, machine)


def _cases(
    slot: str,
    kernels: LayerKernels,
    settings: ModelSettings,
    component: str,
    returned: dict[str, torch.dtype],
    machine: _Machine,
) -> list[_Case]:
    """Return how the model calls a slot; `returned` has the dtypes that earlier slots returned."""
    factory, low = getattr(kernels, slot), machine.products
    block: BlockSettings = getattr(settings, component)
    channels, heads = settings.num_channels, block.num_heads
    normed = returned.get("LayerNorm", low)
    wide, of_heads = (NODES, channels), (NODES, heads, channels // heads)
    match slot:
        case "Linear":
            dtypes = dict.fromkeys((machine.parameters, low, normed))  # of the embeddings, and after a norm
            shape = (NODES, FEATURES)
            builds = [partial(factory, channels, FEATURES)]
            if settings.uses(component, "Attention"):
                builds.append(partial(factory, channels, FEATURES, bias=False))
            return [_Case(build, {"input": (wide, dtype)}, shape) for build in builds for dtype in dtypes]
        case "LayerNorm":
            return [_Case(partial(factory, channels), {"input": (wide, low)}, wide)]
        case "Activation":
            return [_Case(factory, {"input": (wide, low)}, wide)]
        case "QueryNorm" | "KeyNorm":
            return [_Case(partial(factory, channels // heads), {"input": (of_heads, low)}, of_heads)]
        case "MLP":
            build = partial(factory, channels, FEATURES, channels, layer_kernels=kernels)
            return [_Case(build, {"input": (wide, normed)}, wide)]
        case "Attention":
            build = partial(factory, heads, channels // heads, window_size=settings.window_size(component))
            copies = (BATCH, heads, NODES, channels // heads)
            tensors = {
                "query": (copies, returned.get("QueryNorm", low)),
                "key": (copies, returned.get("KeyNorm", low)),
                "value": (copies, low),
            }
            return [_Case(build, tensors, copies, transposed=True)]
        case _:
            edges, parameters = _edges(machine.device, tiled=factory.reads_tiles), machine.parameters
            has_bias = kernels.Linear.record.arguments.get("bias", True)
            inputs = {
                "query": (of_heads, returned.get("QueryNorm", low)),
                "key": (of_heads, returned.get("KeyNorm", low)),
                "value": (of_heads, low),
                "edge_attr": ((edges.num_edges, FEATURES), parameters),
                "edge_weight": ((channels, FEATURES), parameters),
                "edge_bias": ((channels,), parameters) if has_bias else None,
            }
            return [_Case(partial(factory, heads, channels // heads), inputs, of_heads, edges)]


def _edges(device: torch.device, *, tiled: bool) -> Edges:
    """Return two edges into each node but the last, which has none; in tiles, as the model, for who reads those."""
    dst = torch.arange(NODES - 1).repeat_interleave(2)
    src = (dst + torch.arange(dst.numel()) % 2 * 2) % NODES
    edges = Edges.from_sorted(torch.stack([src, dst]), NODES, NODES)
    return (edges.with_tiles() if tiled else edges).to(device)


def _run(case: _Case, machine: _Machine) -> torch.dtype:
    """Build, call and differentiate a layer; return the dtype of its result."""
    with _stage("building it"):
        layer = case.build().to(machine.device, machine.parameters)
    generator = torch.Generator().manual_seed(0)
    leaves: dict[str, Tensor | None] = {}
    for name, spec in case.inputs.items():
        leaf = None if spec is None else torch.randn(spec[0], generator=generator).to(machine.device, spec[1])
        leaves[name] = leaf if leaf is None else leaf.requires_grad_()
    # Copies, as a leaf that learns refuses what is in place before anything could be said of it.
    arguments = [None if leaf is None else leaf.clone() for leaf in leaves.values()]
    if case.transposed:
        arguments = [None if a is None else a.transpose(1, 2).contiguous().transpose(1, 2) for a in arguments]
    passed = [*arguments, *([] if case.edges is None else [case.edges])]
    _check_call(layer, len(passed))
    with _stage("its forward pass"), machine.context():
        result = layer(*passed)
        for (name, leaf), argument in zip(leaves.items(), arguments, strict=True):
            if leaf is not None and argument is not None and not torch.equal(leaf, argument):
                raise _Failed(f"it writes to its {name}", own_fault=True, writes=True)
        _check_result(result, case, machine)
    sought = {f"its {name}": leaf for name, leaf in leaves.items() if leaf is not None}
    sought |= {f"its parameter {name}": p for name, p in layer.named_parameters() if p.requires_grad}
    with _stage("its backward pass"):
        seed = torch.randn(case.shape, generator=generator).to(machine.device, result.dtype)
        gradients = torch.autograd.grad(result, list(sought.values()), seed, allow_unused=True)
        for name, gradient in zip(sought, gradients, strict=True):
            if gradient is None:
                raise _Failed(f"it passes no gradient to {name}", own_fault=True)
            if not gradient.isfinite().all():
                raise _Failed(f"the gradient of {name} is not finite", own_fault=True)
    return result.dtype


def _check_call(layer: nn.Module, count: int) -> None:
    try:
        signature = inspect.signature(layer.forward)
    except (TypeError, ValueError):
        return  # written in C: the call tells
    try:
        signature.bind(*range(count))
    except TypeError as cause:
        plural = "argument" if count == 1 else "arguments"
        what = f"its forward{without_annotations(signature)} can't be called with {count} {plural}: {cause}"
        raise _Failed(what, own_fault=True, called=True) from cause


def _check_result(result: Any, case: _Case, machine: _Machine) -> None:
    allowed = tuple(dict.fromkeys((machine.products, machine.parameters)))
    wrong = None
    if not isinstance(result, Tensor):
        wrong = f"it returns a {type(result).__name__}, where a tensor is due"
    elif result.shape != case.shape:
        wrong = f"it returns the shape {list(result.shape)}, where {list(case.shape)} is due"
    elif result.dtype not in allowed:
        wrong = f"it returns {result.dtype}, where {' or '.join(map(str, allowed))} is due"
    elif result.device.type != machine.device.type:
        wrong = f"it returns a tensor on {result.device}"
    elif not result.isfinite().all():
        wrong = "it returns NaN or infinity for small numbers"
    elif not result.requires_grad:
        wrong = "it passes no gradient to its input"
    if wrong:
        raise _Failed(wrong, own_fault=True)


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """Turn whatever is raised into a failure that says where it happened."""
    try:
        yield
    except _Failed:
        raise
    except (Exception, SystemExit) as error:
        cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ is not None else error
        text = str(cause.args[0]) if isinstance(cause, UserError) else f"{type(cause).__name__}: {cause}"
        raise _Failed(f"{name} fails: {text.rstrip()}", own_fault=False) from error


def _problem(kernel: KernelFactory, failure: _Failed, machine: _Machine) -> Problem:
    record = kernel.record
    where = config_key(record.component, record.slot)
    what = (
        f"slot {record.slot} of {'the model' if record.component == 'model' else record.component}: {record.target} "
        f"does not run on {machine.device.type} with training.precision={machine.precision}: {failure}"
    )
    slot = SLOTS[record.slot]
    ways = [f"{where}._target_={slot.target}"] if record.target != slot.target else []
    values = [f"{where}.{name} (now {show(value)})" for name, value in record.arguments.items()]
    other = [f"another value of {' or '.join(values)}"] if values else []
    if failure.writes:
        written = [f"{where}.{name}=false" for name in in_place(kernel.target, record.arguments)]
        ways = [*(written or ["correct the kernel"]), *ways]
    elif failure.called:
        ways = ["correct the kernel", *ways]
    elif failure.own_fault:
        ways = ["correct the kernel", *other, *ways]
    elif machine.device.type == "cpu" and _wants_gpu(record, str(failure)):
        ways = ["run on a GPU, system=gpu", *ways]
    else:
        ways = [*other, *ways, "another system.hardware.accelerator or training.precision"]
    allowed = f"a kernel that is called with {slot.call}" if failure.called else None
    return Problem(what, where, allowed, ", or ".join(ways))


def _wants_gpu(record: KernelRecord, failure: str) -> bool:
    return record.library in {library for library, _ in EXTRAS.values()} or "active drivers" in failure
