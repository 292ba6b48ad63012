"""Whether two kernels of one family compute the same: both on random numbers, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from etesian.errors import Problem, UserError
from etesian.kernels.families import family_named
from etesian.kernels.interchange import Difference, arguments_for, find, key_of, named, settled
from etesian.kernels.libraries import top_library
from etesian.kernels.probe import _Case, slot_cases
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, KernelFactory, LayerKernels
from etesian.kernels.targets import TargetError, import_target
from etesian.schema.model import ModelSettings
from etesian.schema.training import Precision

TOLERANCES: Mapping[Precision, float] = {"64-true": 1e-5, "32-true": 1e-5, "bf16-mixed": 2e-2}
"""The precisions in which kernels are compared, the first that both run in; and the largest deviation allowed.

A kernel that takes 64 bits may compute in 32 inside, so the first tolerance is no smaller than the second.
"""

SMALLEST, LONGEST = 80, 2048
"""A quarter of the positions that attention is compared on, if the window is not larger; and the most of them."""

_NORMS = ("LayerNorm", "QueryNorm", "KeyNorm")


@dataclass(frozen=True)
class Parity:
    """How far two kernels are apart.

    Attributes
    ----------
    difference : Difference
        The slot and its two kernels.
    output, gradients : float
        Largest deviation of the result, in training and in evaluation, and of the gradients of inputs and parameters;
        each in units of the largest value that the other kernel gives. A second call with the same inputs counts too.
    precision : str
        In which they were compared.
    against : str
        Empty where the two kernels themselves were compared, else what stood in for the old one, and why.
    """

    difference: Difference
    output: float
    gradients: float
    precision: Precision
    against: str = ""

    @property
    def tolerance(self) -> float:
        """The largest deviation allowed."""
        return TOLERANCES[self.precision]

    @property
    def passed(self) -> bool:
        """Whether both deviations are allowed; NaN is not."""
        return self.output <= self.tolerance and self.gradients <= self.tolerance

    def __str__(self) -> str:
        return f"{self.difference}: {self._measured()}, {self.tolerance:.0e} allowed{self._compared()}"

    def problem(self) -> Problem:
        """Return the error that the kernels are farther apart than allowed."""
        return Problem(
            f"the kernels of slot {self.difference} do not compute the same: {self._measured()}{self._compared()}",
            where=key_of(self.difference),
            allowed=f"at most {self.tolerance:.0e} apart",
            mend=f"the kernel of the checkpoint, {named(self.difference.old)}",
        )

    def _measured(self) -> str:
        return f"{self.output:.1e} apart forward, {self.gradients:.1e} backward in {self.precision}"

    def _compared(self) -> str:
        return f"; compared with {self.against}" if self.against else ""


def compare(difference: Difference, kernels: ComponentKernels, settings: ModelSettings, device: torch.device) -> Parity:
    """Compare the two kernels of a slot at the channels and heads of a model, with equal random parameters.

    Rows of a norm's input differ in size by powers of ten, so that eps counts. States of random generators are kept.

    Parameters
    ----------
    difference : Difference
        Two kernels of one family.
    kernels : ComponentKernels
        The mapping that has the new one.
    settings : ModelSettings
        Section ``model``.
    device : torch.device
        Where they run.

    Returns
    -------
    Parity
        Where the old kernel is not installed, can't be built or does not run there, the formula of the family stands
        in for it.

    Raises
    ------
    UserError
        If the new kernel runs in no precision, or the parameters of the two have other names or shapes.
    """
    component = difference.component
    if component == "model":
        wanted = (difference.new.target, difference.new.arguments)
        component = next(
            name
            for name in COMPONENTS
            if settings.uses(name, difference.slot) and _kernel(kernels, name, difference.slot) == wanted
        )
    of_component: LayerKernels = getattr(kernels, component)

    def run(factory: KernelFactory, precision: Precision, parameters: Mapping[str, Tensor] | None) -> _Run:
        swapped = replace(of_component, **{difference.slot: factory})
        return _run(difference.slot, swapped, settings, component, device, precision, parameters)

    new: KernelFactory = getattr(of_component, difference.slot)
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        missing, old = "", None
        try:
            path = difference.old.target
            old = KernelFactory(import_target(path, slot=difference.slot, where=key_of(difference)), difference.old)
        except TargetError:
            missing = f"{top_library(path)} can't be imported here"
        found, failure = (None, missing) if old is None else _first(run, old, new, difference)
        if found is None:
            stand_in = _reference(difference)
            found, failure_here = _first(run, stand_in, new, difference)
            if found is None:
                raise UserError(
                    f"{difference}: the two can't be compared here: {failure_here}", where=key_of(difference)
                )
            why = failure if old is None else f"{difference.old.target} does not run here: {failure}"
            found = replace(found, against=f"{stand_in.record.target}, as {why}")
    return found


def _kernel(kernels: ComponentKernels, component: str, slot: str) -> tuple[str, dict[str, Any]]:
    record: KernelRecord = getattr(getattr(kernels, component), slot).record
    return record.target, record.arguments


@dataclass(frozen=True)
class _Run:
    """What a kernel gave: results, gradients by what they are of, and its parameters."""

    results: list[Tensor]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


class _OtherParameters(Exception):
    """Two kernels whose parameters have other names or shapes: one can't have the weights of the other."""


def _first(
    run: Callable[[KernelFactory, Precision, Mapping[str, Tensor] | None], _Run],
    old: KernelFactory,
    new: KernelFactory,
    difference: Difference,
) -> tuple[Parity | None, str]:
    """Compare in the first precision that both run in; else return why there is none."""
    failure = ""
    for precision in TOLERANCES:
        parameters: Mapping[str, Tensor] | None = None
        try:
            mine = run(new, precision, None)
            parameters = mine.parameters
            theirs = run(old, precision, parameters)
        except _OtherParameters as error:
            raise UserError(str(error), where=key_of(difference)) from None
        except (Exception, SystemExit) as error:  # a kernel may raise anything
            if isinstance(error, UserError) and parameters is None:
                raise  # the new kernel can't be built, in no precision
            cause = error.__cause__ or error if isinstance(error, UserError) else error
            failure = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
            continue
        output = _largest(_deviation(a, b) for a, b in zip(mine.results, theirs.results, strict=True))
        gradients = _largest(
            _deviation(*(side.gradients.get(name, torch.zeros(())) for side in (mine, theirs)))
            for name in mine.gradients | theirs.gradients
        )
        return Parity(difference, output, gradients, precision), ""
    return None, failure


def _largest(deviations: Iterable[float]) -> float:
    """Return the largest; NaN if there is one, wherever it stands."""
    return float(torch.tensor(list(deviations), dtype=torch.float64).max())


def _deviation(value: Tensor, other: Tensor) -> float:
    """Return the largest difference, in units of the largest value of `other`; NaN where either has one."""
    value, other = value.detach().cpu().double(), other.detach().cpu().double()
    largest = float(other.abs().max())
    return float((value - other).abs().max()) / (largest or 1.0)


def _reference(difference: Difference) -> KernelFactory:
    """Return the formula of the family, with the old kernel's constants."""
    old = difference.old
    family = family_named(old.family)
    assert family is not None
    if family.reference is None:
        what = f"{difference}: family {old.family!r} has no formula to compare with"
        raise UserError(what, where=key_of(difference))
    arguments, reasons = arguments_for(family.reference, old.family, settled(old))
    if reasons:
        raise UserError(f"{difference}: {'; '.join(reasons)}", where=key_of(difference))
    return KernelFactory(find(family.reference), replace(old, target=family.reference, arguments=arguments))


def _run(
    slot: str,
    kernels: LayerKernels,
    settings: ModelSettings,
    component: str,
    device: torch.device,
    precision: Precision,
    parameters: Mapping[str, Tensor] | None,
) -> _Run:
    """Run a kernel as the model does; with parameters given, with those, else with random ones.

    Each layer is called twice in training mode, as it may keep something of the first call, then in evaluation.
    """
    generator = torch.Generator().manual_seed(0)
    results: list[Tensor] = []
    gradients: dict[str, Tensor] = {}
    used: dict[str, Tensor] = {}
    machine, cases = slot_cases(slot, kernels, settings, component, device, precision)
    for number, case in enumerate(cases):
        case = _long(case, settings.window_size(component)) if slot == "Attention" else case
        layer = case.build().to(device, machine.parameters)
        prefix = f"{number}."
        if parameters is None:
            _randomise(layer, generator)
        else:
            _take(
                layer, {n.removeprefix(prefix): p for n, p in parameters.items() if n.startswith(prefix)}, kernels, slot
            )
        used |= {prefix + name: value.clone() for name, value in _weights(layer).items()}
        inputs = torch.Generator().manual_seed(1)
        leaves: dict[str, Tensor | None] = {}
        for name, spec in case.inputs.items():
            leaf = None if spec is None else torch.randn(spec[0], generator=inputs, dtype=torch.float64)
            if leaf is not None and spec is not None and slot in _NORMS:
                leaf = leaf * torch.logspace(-3, 1, spec[0][0], dtype=torch.float64).view(-1, *[1] * (leaf.dim() - 1))
            leaves[name] = None if leaf is None or spec is None else leaf.to(device, spec[1]).requires_grad_()
        sought = {prefix + name: leaf for name, leaf in leaves.items() if leaf is not None}
        sought |= {f"{prefix}parameter {name}": p for name, p in layer.named_parameters() if p.requires_grad}
        seed = torch.randn(case.shape, generator=inputs, dtype=torch.float64).to(device)
        for call in ("first", "second"):
            with machine.context():
                result = _call(layer.train(), case, leaves)
            results.append(result.detach())
            found = torch.autograd.grad(result, list(sought.values()), seed.to(result.dtype))
            gradients |= {f"{call} {name}": gradient for name, gradient in zip(sought, found, strict=True)}
        with machine.context(), torch.no_grad():
            results.append(_call(layer.eval(), case, leaves))
    return _Run(results, gradients, used)


def _call(layer: nn.Module, case: _Case, leaves: Mapping[str, Tensor | None]) -> Tensor:
    """Call a layer with copies, as it may work in place."""
    arguments = [None if leaf is None else leaf.clone() for leaf in leaves.values()]
    if case.transposed:
        arguments = [None if a is None else a.transpose(1, 2).contiguous().transpose(1, 2) for a in arguments]
    result: Tensor = layer(*arguments, *([] if case.edges is None else [case.edges]))
    return result


def _long(case: _Case, window: int | None) -> _Case:
    """Return a case of attention with more positions than one window or block of a kernel holds."""
    count = min(4 * max(window or 0, SMALLEST), LONGEST)

    def lengthened(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, shape[1], count, shape[3])

    inputs = {name: spec and (lengthened(spec[0]), spec[1]) for name, spec in case.inputs.items()}
    return replace(case, inputs=inputs, shape=lengthened(case.shape))


def _randomise(layer: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a layer's state dict; libraries add states of their own beside the weights."""
    return {
        name: value
        for name, value in layer.state_dict().items()
        if isinstance(value, Tensor) and not name.endswith("_extra_state")
    }


def _take(layer: nn.Module, parameters: Mapping[str, Tensor], kernels: LayerKernels, slot: str) -> None:
    """Give a layer the parameters of another."""
    own = _weights(layer)
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in parameters.items()}:
        target = getattr(kernels, slot).record
        theirs, mine = (", ".join(f"{n} {tuple(v.shape)}" for n, v in side.items()) for side in (parameters, own))
        raise _OtherParameters(
            f"slot {slot}: {named(target)} has the parameters {mine or 'none'}, not {theirs or 'none'}"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(parameters[name])


def check_parity(
    changed: list[Difference], kernels: ComponentKernels, settings: ModelSettings, device: torch.device
) -> list[Parity]:
    """Compare the kernels of every slot that changed.

    Raises
    ------
    UserError
        Naming each slot whose kernels are farther apart than the tolerance.
    """
    found = [compare(difference, kernels, settings, device) for difference in changed]
    problems = [parity.problem() for parity in found if not parity.passed]
    if problems:
        raise UserError.collect(problems)
    return found


def as_json(parities: list[Parity]) -> list[dict[str, Any]]:
    """Return the comparisons as plain dicts, for a record."""
    return [
        {
            "slot": str(parity.difference), "output": parity.output, "gradients": parity.gradients,
            "precision": parity.precision, "tolerance": parity.tolerance, "against": parity.against,
        }
        for parity in parities
    ]  # fmt: skip
