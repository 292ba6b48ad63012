"""How far a kernel is from its family's mathematics in float64, at the size that is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.bench.cases import Case, Inputs
from etesian.kernels.bench.exact import NoReference, exact_layer
from etesian.kernels.machine import Machine
from etesian.kernels.record import KernelRecord

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest relative error of a right kernel, by the dtype of the products: rounding is well below, a mistake above."""

PIECE = 2**25
"""Numbers of the widest tensor of one piece of the computation in float64: 256 MB."""


class Wrong(Exception):
    """A kernel computes something else than it should."""


@dataclass
class Errors:
    """Relative errors, ``|a - exact| / |exact|`` over all numbers of a tensor.

    Attributes
    ----------
    output : float or None
        Of the result; None where there is no reference.
    gradients : dict
        Of the gradient of each input and parameter, by its name.
    reference : str
        What was computed in float64; or why nothing was.
    """

    output: float | None
    gradients: dict[str, float] = field(default_factory=dict)
    reference: str = ""

    @property
    def worst_gradient(self) -> float | None:
        """The largest error of a gradient."""
        return max(self.gradients.values()) if self.gradients else None


@dataclass
class Outcome:
    """What one forward and backward pass gave.

    Attributes
    ----------
    output : Tensor
        The result.
    gradients : dict
        By the name of the input or parameter.
    writes_cotangent : bool
        Whether the backward pass writes to the gradient that it is given, as it may.
    """

    output: Tensor
    gradients: dict[str, Tensor]
    writes_cotangent: bool


def run_once(case: Case, layer: nn.Module, inputs: Inputs, cotangent_seed: int, machine: Machine) -> Outcome:
    """Run a layer forward and backward and look at what comes back.

    Raises
    ------
    Wrong
        For a result of another type, shape, device or dtype than the slot's, for NaN or infinity, for a gradient
        that is missing, and for a layer that writes to its inputs.
    """
    before = {name: tensor.detach().clone() for name, tensor in inputs.items() if tensor is not None}
    with machine.context():
        output = case.call(layer, inputs)
    if not isinstance(output, Tensor):
        raise Wrong(f"it returns a {type(output).__name__}, where a tensor is due")
    if output.shape != case.out_shape:
        raise Wrong(f"it returns the shape {list(output.shape)}, where {list(case.out_shape)} is due")
    if output.dtype not in (machine.products, machine.parameters):
        raise Wrong(f"it returns {output.dtype}, where {machine.products} or {machine.parameters} is due")
    if not bool(output.isfinite().all()):
        raise Wrong("it returns NaN or infinity for small numbers")
    wanted = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    wanted |= {name: parameter for name, parameter in layer.named_parameters() if parameter.requires_grad}
    cotangent = case.random_cotangent(cotangent_seed, machine.device, output.dtype)
    found = torch.autograd.grad(output, list(wanted.values()), cotangent, allow_unused=True)
    gradients = {}
    for name, gradient in zip(wanted, found, strict=True):
        if gradient is None:
            raise Wrong(f"it passes no gradient to {name}")
        gradients[name] = gradient
    for name, was in before.items():
        if not torch.equal(was, inputs[name].detach()):  # type: ignore[union-attr]
            raise Wrong(f"it writes to its {name}")
    same = torch.equal(cotangent, case.random_cotangent(cotangent_seed, machine.device, output.dtype))
    return Outcome(output.detach(), gradients, not same)


def relative_errors(
    case: Case, layer: nn.Module, record: KernelRecord, inputs: Inputs, outcome: Outcome, cotangent_seed: int,
    machine: Machine,
) -> Errors:  # fmt: skip
    """Compare a result and its gradients with the same in float64, piece by piece.

    Raises
    ------
    Wrong
        If an error exceeds `BOUNDS`.
    """
    try:
        exact, name = exact_layer(record, layer, _input_dtype(inputs))
        exact = exact.to(machine.device)
    except NoReference as reason:
        return Errors(None, {}, str(reason))
    cotangent = case.random_cotangent(cotangent_seed, machine.device, outcome.output.dtype)
    sums = _Sums()
    totals: dict[str, Tensor] = {}
    parameters = {key: parameter for key, parameter in exact.named_parameters() if key in outcome.gradients}
    for piece in _pieces(case):
        leaves = {key: _leaf(inputs[key], piece.parts.get(key)) for key in inputs}
        try:
            output = exact(*leaves.values(), *piece.beside)
            sought = {key: leaf for key, leaf in leaves.items() if leaf is not None} | parameters
            found = torch.autograd.grad(output, list(sought.values()), cotangent[piece.rows].double())
        except (RuntimeError, TypeError) as cause:
            return Errors(None, {}, f"{name} does not run in float64: {' '.join(str(cause).split())}")
        sums.add("output", outcome.output[piece.rows], output.detach())
        for key, gradient in zip(sought, found, strict=True):
            part = piece.parts.get(key)
            if part is not None and not part.summed:
                sums.add(key, outcome.gradients[key][part.index], gradient)
            else:
                total = totals.setdefault(key, torch.zeros_like(outcome.gradients[key], dtype=torch.float64))
                total[... if part is None else part.index] += gradient
    for key, total in totals.items():
        sums.add(key, outcome.gradients[key], total)
    found_errors = sums.relative()
    _check_bounds(found_errors, name, machine)
    return Errors(found_errors.pop("output"), found_errors, name)


SAMPLE = 2**18
"""Numbers of each tensor that are kept of a first pass to be compared with a later one."""


class Fingerprint:
    """Some numbers of a pass, evenly spread over its result and each gradient.

    Parameters
    ----------
    outcome : Outcome
        Of the pass.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.samples = {"result": _sample(outcome.output)}
        self.samples |= {f"gradient of {name}": _sample(tensor) for name, tensor in outcome.gradients.items()}

    def check_same(self, later: Outcome, machine: Machine) -> None:
        """Compare with a later pass of the same numbers.

        Raises
        ------
        Wrong
            If something is further apart than `BOUNDS`: the kernel is random, or keeps something between calls.
        """
        bound = BOUNDS[machine.products]
        for name, now in Fingerprint(later).samples.items():
            first = self.samples[name].double()
            apart = float((now.double() - first).norm()) / (float(first.norm()) or 1.0)
            if not apart <= bound:  # NaN too
                raise Wrong(f"called again with the same numbers its {name} is {apart:.1e} apart (bound {bound:.0e})")


def _sample(tensor: Tensor) -> Tensor:
    numbers = tensor.detach().reshape(-1)
    return numbers[:: max(1, numbers.numel() // SAMPLE)].clone()


def _input_dtype(inputs: Inputs) -> torch.dtype:
    return next(tensor.dtype for tensor in inputs.values() if tensor is not None)


def _check_bounds(errors: dict[str, float], reference: str, machine: Machine) -> None:
    bound = BOUNDS[machine.products]
    for name, error in errors.items():
        if not error <= bound:  # NaN too
            what = "result" if name == "output" else f"gradient of {name}"
            raise Wrong(f"relative error {error:.1e} of the {what}, against {reference} in float64 (bound {bound:.0e})")


class _Sums:
    """Sums of squares of differences and of exact values, by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, found: Tensor, exact: Tensor) -> None:
        difference, size = (found.double() - exact).square().sum(), exact.square().sum()
        before = self._sums.get(name)
        self._sums[name] = (difference, size) if before is None else (before[0] + difference, before[1] + size)

    def relative(self) -> dict[str, float]:
        """Return the relative errors; an exact zero makes it the difference itself."""
        return {
            name: math.sqrt(difference.item()) / (math.sqrt(size.item()) or 1.0) if size.item() >= 0 else math.nan
            for name, (difference, size) in self._sums.items()
        }


Index = Any
"""What chooses a part of a tensor: a slice, a tensor of numbers, or a tuple of slices."""


@dataclass(frozen=True)
class _Part:
    """Where the numbers of an input are that a piece reads; gradients of one that is `summed` add up over pieces."""

    index: Index
    summed: bool = False


@dataclass(frozen=True)
class _Piece:
    """Rows of the result, and what of the inputs they come from; an input that is not named is read whole."""

    rows: Index
    parts: dict[str, _Part]
    beside: tuple[Any, ...] = ()
    """What the reference is called with after the tensors."""


def _leaf(tensor: Tensor | None, part: _Part | None) -> Tensor | None:
    if tensor is None:
        return None
    chosen = tensor.detach() if part is None else tensor.detach()[part.index]
    return chosen.to(torch.float64, copy=True).requires_grad_()


def _pieces(case: Case) -> Iterator[_Piece]:
    if case.edges is not None:
        yield from _pieces_of_edges(case, case.edges)
        return
    if case.slot == "Attention":
        yield from _pieces_of_queries(case)
        return
    rows, hidden = case.out_shape[0], case.shape.block.mlp_hidden_ratio
    width = math.prod(case.out_shape[1:]) * (max(1.0, hidden) if case.slot == "MLP" else 1.0)
    step = max(1, int(PIECE / width))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        yield _Piece(part, {name: _Part(part) for name in case.inputs})


def _pieces_of_edges(case: Case, edges: Edges) -> Iterator[_Piece]:
    """Yield ranges of destination nodes, with the edges into them and the source nodes they need, numbered anew."""
    width = math.prod(case.out_shape[1:])
    mean_degree = max(1.0, edges.num_edges / max(1, edges.num_dst))
    step = max(1, int(PIECE / width / mean_degree))
    for start in range(0, edges.num_dst, step):
        stop = min(start + step, edges.num_dst)
        first, last = int(edges.dst_ptr[start]), int(edges.dst_ptr[stop])
        sources, src = edges.src[first:last].unique(return_inverse=True)
        index = torch.stack([src, edges.dst[first:last] - start])
        rows, of_edges = _Part(slice(start, stop)), _Part(slice(first, last))
        parts = {"query": rows, "key": _Part(sources, True), "value": _Part(sources, True), "edge_attr": of_edges}
        yield _Piece(slice(start, stop), parts, (Edges.from_sorted(index, sources.numel(), stop - start),))


def _pieces_of_queries(case: Case) -> Iterator[_Piece]:
    """Yield ranges of queries of one head, with the keys that they may see."""
    copies, heads, nodes, _ = case.out_shape
    window = nodes if case.window_size is None else case.window_size
    step = max(1, min(PIECE // nodes, 4 * max(window, 64)))
    for copy in range(copies):
        for head in range(heads):
            for start in range(0, nodes, step):
                stop = min(start + step, nodes)
                first, last = max(0, start - window), min(nodes, stop + window)
                where = (slice(copy, copy + 1), slice(head, head + 1))
                seen = _Part((*where, slice(first, last)), True)
                rows = (*where, slice(start, stop))
                yield _Piece(rows, {"query": _Part(rows), "key": seen, "value": seen}, (start, first))
