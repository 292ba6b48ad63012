"""Every kernel of a slot on one shape: first whether it is right, then how long it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels.bench.accuracy import Fingerprint, Wrong, relative_errors, run_once
from etesian.kernels.bench.candidates import Candidate
from etesian.kernels.bench.cases import Case, Inputs
from etesian.kernels.bench.compiled import compile_in_place, forget_compiled, graphs_so_far
from etesian.kernels.bench.results import KernelResult, ShapeResult
from etesian.kernels.bench.timing import Ceilings, Clock, interleave
from etesian.kernels.libraries import EXTRAS
from etesian.kernels.machine import Machine

LONGEST_REASON = 240
"""Characters of what a library says; compilers say much."""


@dataclass(frozen=True)
class Plan:
    """How kernels are timed.

    Attributes
    ----------
    repeats : int
        Rounds; with 0 kernels are checked, and not timed.
    min_seconds : float
        Time that all samples of one kernel take together at least.
    compiled : bool
        Whether compiled forms take part.
    backend : str, optional
        Of ``torch.compile``; its default when left out.
    inference : bool
        Whether the forward pass by itself runs as in inference: nothing is kept for a backward pass.
    """

    repeats: int = 9
    min_seconds: float = 0.2
    compiled: bool = True
    backend: str | None = None
    inference: bool = False


@dataclass
class _Form:
    """A kernel that is right, ready to be timed."""

    result: KernelResult
    layer: nn.Module
    out_dtype: torch.dtype
    writes_cotangent: bool
    first: Fingerprint


def bench_case(
    case: Case, candidates: Sequence[Candidate], machine: Machine, clock: Clock, ceilings: Ceilings, plan: Plan
) -> ShapeResult:
    """Compare the kernels of a slot on one shape.

    Parameters
    ----------
    case : Case
        The slot and the shape.
    candidates : sequence of Candidate
        The kernels.
    machine : Machine
        Device and precision of the run.
    clock : Clock
        Of the device.
    ceilings : Ceilings
        What the device does at best.
    plan : Plan
        How to time.
    """
    forget_compiled()
    count = case.set_count(clock.cache_bytes)
    sets = [case.random_inputs(seed, machine.device) for seed in range(count)]
    results: list[KernelResult] = []
    forms: list[_Form] = []
    for candidate in candidates:
        for result, form in _forms(candidate, case, sets[0], machine, plan):
            results.append(result)
            if form is not None:
                forms.append(form)
    try:
        _time(forms, case, sets, machine, clock, plan)
    except Exception as cause:  # they ran before one by one; the memory may not suffice for all
        for form in forms:
            if form.result.both is None:
                form.result.reason = f"not timed beside the others: {_reason(cause, compiled=False)}"
    for form in forms:
        _check_again(form, case, sets[0], machine)
    layer = forms[0].layer if forms else nn.Module()
    weights = sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
    floors = [
        ceilings.floor_ms(moved, flops)
        for moved, flops in zip(case.floor_bytes(weights), case.flops(layer), strict=True)
    ]
    del sets
    clock.release()
    return ShapeResult(
        slot=case.slot,
        shape_name=case.shape.name,
        rows=case.shape.rows,
        calls=case.shape.calls,
        inputs={
            name: f"{' x '.join(f'{size:,}' for size in spec[0])} {str(spec[1]).removeprefix('torch.')}"
            for name, spec in case.inputs.items()
            if spec is not None
        },
        input_sets=count,
        floor_ms=(floors[0][0], floors[1][0]),
        floor_kind=(floors[0][1], floors[1][1]),
        kernels=results,
    )


def _forms(
    candidate: Candidate, case: Case, inputs: Inputs, machine: Machine, plan: Plan
) -> list[tuple[KernelResult, _Form | None]]:
    """Check a kernel and its compiled form."""
    if candidate.kernels is None:
        return [(_result(candidate, compiled=False, reason=candidate.reason, mend=candidate.mend), None)]
    plain = _checked(candidate, case, inputs, machine, compiled=False, plan=plan)
    if not plan.compiled or plain[1] is None:
        return [plain]
    return [plain, _checked(candidate, case, inputs, machine, compiled=True, plan=plan)]


def _checked(
    candidate: Candidate, case: Case, inputs: Inputs, machine: Machine, *, compiled: bool, plan: Plan
) -> tuple[KernelResult, _Form | None]:
    result = _result(candidate, compiled=compiled)
    assert candidate.kernels is not None
    assert candidate.record is not None
    try:
        layer = _build(case, candidate, machine)
        graphs = graphs_so_far()
        if compiled:
            compile_in_place(layer, candidate.compile, backend=plan.backend)
        outcome = run_once(case, layer, inputs, 0, machine)
        if compiled and graphs_so_far() == graphs:
            result.reason = "torch.compile makes no graph of it"
            return result, None
        if compiled:  # what is compared with is not to be compiled
            result.errors = relative_errors(
                case, _build(case, candidate, machine), candidate.record, inputs, outcome, 0, machine
            )
        else:
            result.errors = relative_errors(case, layer, candidate.record, inputs, outcome, 0, machine)
    except Wrong as wrong:
        result.reason, result.wrong = f"wrong: {wrong}", True
        return result, None
    except (Exception, SystemExit) as cause:
        result.reason, result.mend = _reason(cause, compiled), _mend(candidate, cause, machine)
        return result, None
    return result, _Form(result, layer, outcome.output.dtype, outcome.writes_cotangent, Fingerprint(outcome))


def _check_again(form: _Form, case: Case, inputs: Inputs, machine: Machine) -> None:
    """Check after the timing that a kernel still computes what it did at first; if not, its times are dropped."""
    if form.result.reason:
        return
    result = form.result
    try:
        form.first.check_same(run_once(case, form.layer, inputs, 0, machine), machine)
    except Wrong as wrong:
        result.reason, result.wrong = f"wrong: {wrong}", True
    except Exception as cause:
        result.reason = f"after it was timed it {_reason(cause, compiled=False)}"
    if result.reason:
        result.forward = result.both = result.peak_bytes = None


def _result(candidate: Candidate, *, compiled: bool, reason: str = "", mend: str = "") -> KernelResult:
    chosen = candidate.chosen_by if compiled == (candidate.compile is not None) else ()
    return KernelResult(
        candidate.label, candidate.target, candidate.arguments, compiled, chosen, candidate.record, reason=reason,
        mend=mend,
    )  # fmt: skip


def _build(case: Case, candidate: Candidate, machine: Machine) -> nn.Module:
    """Build a layer whose parameters are the same each time, and none of them a plain 0 or 1."""
    assert candidate.kernels is not None
    device = machine.device
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(0)
        layer = case.build(candidate.kernels).to(device, machine.parameters)
        with torch.no_grad():
            for _, parameter in sorted(layer.named_parameters()):
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def _time(
    forms: Sequence[_Form], case: Case, sets: Sequence[Inputs], machine: Machine, clock: Clock, plan: Plan
) -> None:
    """Time the kernels in turns; the results go to their records."""
    shared: dict[torch.dtype, list[Tensor]] = {}
    forward: dict[str, Callable[[int], object]] = {}
    both: dict[str, Callable[[int], object]] = {}
    prepare: dict[str, Callable[[], None]] = {}
    for number, form in enumerate(forms):
        dtype = form.out_dtype
        if dtype not in shared:
            shared[dtype] = [case.random_cotangent(seed, machine.device, dtype) for seed in range(len(sets))]
        seeds = [seed.clone() for seed in shared[dtype]] if form.writes_cotangent else shared[dtype]
        if form.writes_cotangent:
            prepare[str(number)] = _copies(shared[dtype], seeds)
        forward[str(number)], both[str(number)] = _works(form.layer, case, sets, seeds, machine)
        if plan.inference:
            forward[str(number)] = torch.no_grad()(forward[str(number)])
    if not forms or not plan.repeats:
        return
    times = {
        "forward": interleave(forward, clock, repeats=plan.repeats, min_seconds=plan.min_seconds),
        "both": interleave(both, clock, repeats=plan.repeats, min_seconds=plan.min_seconds, prepare=prepare),
    }
    for number, form in enumerate(forms):
        form.result.forward = times["forward"][str(number)]
        form.result.both = times["both"][str(number)]
        form.result.peak_bytes = clock.peak_bytes(lambda work=both[str(number)]: work(0))  # type: ignore[misc]


def _copies(source: Sequence[Tensor], target: Sequence[Tensor]) -> Callable[[], None]:
    def copy() -> None:
        for one, other in zip(source, target, strict=True):
            other.copy_(one)

    return copy


def _works(
    layer: nn.Module, case: Case, sets: Sequence[Inputs], seeds: Sequence[Tensor], machine: Machine
) -> tuple[Callable[[int], object], Callable[[int], object]]:
    """Return the forward pass, and the forward and backward pass, of the input set of a number."""
    context = _entered_often(machine)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    wanted = [[*(leaf for leaf in inputs.values() if leaf is not None), *parameters] for inputs in sets]
    count = len(sets)

    def forward(number: int) -> Tensor:
        with context():
            return case.call(layer, sets[number % count])

    def both(number: int) -> None:
        which = number % count
        torch.autograd.grad(forward(which), wanted[which], seeds[which])

    return forward, both


def _entered_often(machine: Machine) -> Callable[[], AbstractContextManager[Any]]:
    """Return the context of a forward pass; an autocast is made once, as a training step makes one for all layers."""
    context = machine.context()
    return (lambda: context) if isinstance(context, torch.autocast) else machine.context


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""What differs from process to process in the text of an object."""


def _reason(cause: BaseException, compiled: bool) -> str:
    if isinstance(cause, UserError) and cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    told = _ADDRESS.sub("", " ".join(lines[:2]).partition(" Explanation:")[0])
    text = f"{type(cause).__name__}: {told}" if told else type(cause).__name__
    text = text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."
    return f"can't be compiled: {text}" if compiled else f"fails: {text}"


def _mend(candidate: Candidate, cause: BaseException, machine: Machine) -> str:
    assert candidate.record is not None
    libraries = {library for library, _ in EXTRAS.values()}
    wants_gpu = candidate.record.library in libraries or "active drivers" in str(cause)
    return "run on a GPU, system=gpu" if machine.device.type == "cpu" and wants_gpu else ""
