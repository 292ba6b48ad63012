"""A trial of every kernel, before anything is trained: a few rows through each layer, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from etesian.errors import Problem, UserError
from etesian.graph.edges import Edges
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, KernelFactory
from etesian.kernels.slots import SLOTS
from etesian.schema.model import BlockSettings, ModelSettings

ROWS, EDGE_FEATURES = 3, 4

Build = Callable[[], nn.Module]
Shape = tuple[int, ...]


def try_kernels(kernels: ComponentKernels, settings: ModelSettings, precision: str, device: torch.device) -> None:
    """Build a layer of each kernel as the model will, call it, and look at what comes back.

    Parameters
    ----------
    kernels : ComponentKernels
        What :func:`etesian.kernels.resolve.resolve_kernels` returns.
    settings : ModelSettings
        Section ``model``: the layers have the sizes of the model.
    precision : str
        ``training.precision``.
    device : torch.device
        Where the model will run.

    Raises
    ------
    UserError
        With each kernel that can't be built, that raises, or that returns something other than its slot promises: a
        tensor of the right shape and type, without NaNs, that gradients flow through.
    """
    problems: dict[str, Problem] = {}
    dtype = torch.float64 if precision == "64-true" else torch.float32
    lower = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for component in COMPONENTS:
            block = getattr(settings, component)
            for factory, build, given, wanted in _layers(getattr(kernels, component), block, settings.num_channels):
                record = factory.record
                prefix = "model" if record.component == "model" else f"model.{record.component}"
                key = f"{prefix}.layer_kernels.{record.slot}"
                if key in problems:
                    continue
                try:
                    fault = _fault(build, given, wanted, dtype, lower, device)
                except UserError as error:  # it can't be built
                    problems |= {problem.where or key: problem for problem in error.problems}
                    continue
                if fault is not None:
                    what = f"slot {record.slot}: {record.target} {fault}"
                    problems[key] = Problem(what, key, f"what is called with {SLOTS[record.slot].call}")
    if problems:
        raise UserError.collect(problems.values())


def _layers(
    kernels: object, block: BlockSettings, channels: int
) -> Iterator[tuple[KernelFactory, Build, list[Shape], Shape]]:
    """Yield each factory of a component, how the model builds with it, the shapes that go in and the one to come out.

    The layers within the MLP come before it, so that a fault of theirs is not laid at its door.
    """
    head = channels // block.num_heads
    hidden = int(channels * block.mlp_hidden_ratio)
    sizes: dict[str, tuple[tuple[int, ...], list[Shape], Shape]] = {
        "Linear": ((channels, channels), [(ROWS, channels)], (ROWS, channels)),
        "LayerNorm": ((channels,), [(ROWS, channels)], (ROWS, channels)),
        "Activation": ((), [(ROWS, hidden)], (ROWS, hidden)),
        "GraphAttention": (
            (block.num_heads, head),
            [(ROWS, block.num_heads, head)] * 3 + [(ROWS + 1, EDGE_FEATURES), (channels, EDGE_FEATURES), (channels,)],
            (ROWS, block.num_heads, head),
        ),
    }
    if block.qk_norm:
        sizes |= dict.fromkeys(("QueryNorm", "KeyNorm"), ((head,), [(ROWS, block.num_heads, head)],
                                                          (ROWS, block.num_heads, head)))  # fmt: skip
    sizes["MLP"] = ((channels, hidden, channels), [(ROWS, channels)], (ROWS, channels))
    for slot, (arguments, given, wanted) in sizes.items():
        factory: KernelFactory = getattr(kernels, slot)
        keywords = {"layer_kernels": kernels} if slot == "MLP" else {}
        yield factory, lambda f=factory, a=arguments, k=keywords: f(*a, **k), given, wanted  # type: ignore[misc]


def _fault(
    build: Build,
    given: list[Shape],
    wanted: Shape,
    dtype: torch.dtype,
    lower: torch.dtype | None,
    device: torch.device,
) -> str | None:
    """Return what is wrong with a layer, in words; None for a good one."""
    layer = build().to(device, dtype)
    inputs = [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in given]
    edges: list[Edges] = []
    if len(inputs) > 1:  # two edges into node 0, one into each of the others
        index = torch.tensor([[0, 1, 2, 0], [0, 0, 1, 2]], device=device)
        edges = [Edges.from_sorted(index, ROWS, ROWS)]
    try:
        with torch.autocast(device.type, dtype=lower, enabled=lower is not None):
            output = layer(*inputs, *edges)
    except (Exception, SystemExit) as cause:  # a kernel of the user's may raise anything
        return f"fails when it is called with shapes {_shapes(given)}: {type(cause).__name__}: {cause}"
    if not isinstance(output, Tensor):
        return f"returns a {type(output).__name__}, no tensor"
    if tuple(output.shape) != wanted:
        return f"returns shape {tuple(output.shape)} for {_shapes(given)}, where the model needs {wanted}"
    if output.dtype not in (dtype, lower):
        return f"returns {output.dtype}, where the model computes with {lower or dtype}"
    if not bool(torch.isfinite(output).all()):
        return "returns NaN or infinite values for normally distributed ones"
    if not output.requires_grad:
        return "returns what no gradient flows through"
    try:
        output.sum().backward()
    except (Exception, SystemExit) as cause:
        return f"fails in the backward pass: {type(cause).__name__}: {cause}"
    return None


def _shapes(shapes: list[Shape]) -> str:
    return ", ".join(str(shape) for shape in shapes)
