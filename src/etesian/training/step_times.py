"""Steps of several models timed in turns on one device, together where they fit into its memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from etesian.errors import UserError
from etesian.kernels.bench.compiled import forget_compiled
from etesian.kernels.bench.timing import Spread, interleave
from etesian.runtime.device import DeviceClock

WARM_UP = 3
"""Steps after the first, before anything is timed."""

ROOM = 0.8
"""Share of the device's memory that models may take before they have to take turns on it."""


@dataclass
class StepsResult:
    """One model.

    Attributes
    ----------
    name : str
        The presets it is made with, or what else tells it from the others.
    own : bool
        Whether it is the experiment as configured.
    step : Spread or None
        Milliseconds of a step; None where it was not timed.
    samples_per_second : float or None
        At the median.
    first_step_seconds : float or None
        The first step, with compilation and whatever else is done once.
    peak_bytes : int or None
        Memory of a step with weights, optimiser and batch; None on a CPU.
    graphs : int
        Graphs that torch compiled.
    first_loss, first_gradient : float or None
        Loss of the first step, and norm of its gradients.
    reason, mend : str
        Why it was not timed, and what helps.
    """

    name: str
    own: bool = False
    step: Spread | None = None
    samples_per_second: float | None = None
    first_step_seconds: float | None = None
    peak_bytes: int | None = None
    graphs: int = 0
    first_loss: float | None = None
    first_gradient: float | None = None
    reason: str = ""
    mend: str = ""


class Steps(Protocol):
    """What is timed: a model that takes steps; :class:`StepModel` is one."""

    loss: Tensor | None

    def step(self, number: int = 0) -> None:
        """Take one step, and keep its loss."""

    def to(self, device: torch.device) -> None:
        """Move to a device with all that a step leaves behind, without what the next step makes anew."""

    def drop(self) -> None:
        """Drop what the next step makes anew: gradients, a recording."""

    def gradient_norm(self) -> float | None:
        """Return the norm of the gradients of the last step; None where a step has none."""

    def graphs(self) -> int:
        """Return how many graphs torch compiled; raise where something that was to be compiled was not."""


def time_models(
    makers: Mapping[str, Callable[[], Steps]],
    clock: DeviceClock,
    *,
    samples: int,
    repeats: int,
    min_seconds: float,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[StepsResult], str]:
    """Make models, let each take its first steps alone on the device, then time the steps of all in turns.

    Parameters
    ----------
    makers : mapping
        Name to what makes the model, on the CPU; one that fails there or later is not timed.
    clock : DeviceClock
        Of the device.
    samples : int
        Samples of a step.
    repeats : int
        Rounds.
    min_seconds : float
        Time that all samples of one model take together at least.
    say : callable
        Is told what has been done, a line for each model.

    Returns
    -------
    results : list of StepsResult
        One a maker, in their order.
    memory : str
        Whether all models stayed on the device, or took turns.
    """
    room = clock.free_bytes()
    forget_compiled()
    results: list[StepsResult] = []
    models: dict[str, Steps] = {}
    kept: dict[str, tuple[int, int]] = {}
    seconds: dict[str, float] = {}
    for name, make in makers.items():
        result = StepsResult(name)
        results.append(result)
        try:
            model = make()
            kept[name], seconds[name] = _visit(model, result, clock)
            models[name] = model
            say(f"{name}: first step {result.first_step_seconds:.1f} s")
        except Exception as cause:  # whatever a kernel or a compiler raises
            result.reason, result.mend = _reason(cause)
            say(f"{name}: {result.reason}")
        gc.collect()  # what a failure left, which modules that hold themselves keep
        clock.release()
    turns = Turns(models, clock.device, partial(fits, kept, room))
    if models:
        times = interleave(
            {name: model.step for name, model in models.items()}, clock, repeats=repeats, min_seconds=min_seconds,
            prepare={name: turns.let_in(name) for name in models}, queued=False, known=seconds,
        )  # fmt: skip
        for result in results:
            if result.name in times:
                result.step = times[result.name].call
                result.samples_per_second = 1e3 * samples / result.step.median
    return results, memory_note(kept, room, stay=all_fit(kept, room))


def norm_of_gradients(module: torch.nn.Module) -> float:
    """Return the norm of all gradients of a module together."""
    norms = [parameter.grad.double().norm() for parameter in module.parameters() if parameter.grad is not None]
    return float(torch.stack(norms).norm())


class Turns:
    """Which models are on the device.

    Parameters
    ----------
    models : dict
        The models, on the CPU.
    device : torch.device
        The device.
    fit : callable
        Whether some models can stay while another takes a step: called with their names and its name.
    """

    def __init__(
        self, models: Mapping[str, Steps], device: torch.device, fit: Callable[[Sequence[str], str], bool]
    ) -> None:
        self.models, self.device, self.fit = models, device, fit
        self.there: list[str] = []

    def let_in(self, name: str) -> Callable[[], None]:
        """Return what brings a model to the device and warms it up; others leave as far as it needs the room."""

        def work() -> None:
            others = [other for other in self.there if other != name]
            while others and not self.fit(others, name):
                self.models[others.pop()].to(torch.device("cpu"))  # the one that was there last is needed last
            is_there = name in self.there
            self.there = [*others, name]
            if not is_there:
                self.models[name].to(self.device)
                self.models[name].step()

        return work


def _visit(model: Steps, result: StepsResult, clock: DeviceClock) -> tuple[tuple[int, int], float]:
    """Let a model take its first steps alone on the device.

    Returns
    -------
    kept : tuple of int
        Bytes that it keeps there, and those that a step, the first one too, takes beside.
    seconds : float
        Of a step.
    """
    before = clock.kept_bytes() or 0
    try:
        model.to(clock.device)

        def first() -> None:
            start = time.perf_counter()
            model.step()
            assert model.loss is not None
            result.first_loss = float(model.loss)  # waits for the device
            result.first_step_seconds = time.perf_counter() - start

        moved = clock.held_bytes() or 0
        beside = clock.peak_bytes(first)  # a step that is recorded runs as it is before
        if beside is None:
            first()
        result.first_gradient = model.gradient_norm()
        seconds, _ = clock.seconds(model.step, WARM_UP)
        result.graphs = model.graphs()
        model.drop()
        held = clock.held_bytes() or 0
        peak = clock.peak_bytes(model.step)
        result.peak_bytes = None if peak is None else held + peak
        kept = (clock.kept_bytes() or 0) - before
        return (kept, max(0, max(moved + (beside or 0), held + (peak or 0)) - before - kept)), seconds
    finally:
        model.to(torch.device("cpu"))


def fits(kept: Mapping[str, tuple[int, int]], room: int | None, staying: Sequence[str], name: str) -> bool:
    """Tell whether some models can stay while another takes a step; the arguments are those of :func:`all_fit`."""
    return room is None or sum(kept[other][0] for other in staying) + sum(kept[name]) < ROOM * room


def all_fit(kept: dict[str, tuple[int, int]], room: int | None) -> bool:
    """Tell whether all models can stay while one takes a step.

    Parameters
    ----------
    kept : dict
        Bytes that a model keeps on the device, and those that a step takes beside.
    room : int or None
        Bytes there are; None where nobody counts them.
    """
    if room is None or not kept:
        return True
    return sum(held for held, _ in kept.values()) + max(peak for _, peak in kept.values()) < ROOM * room


def memory_note(kept: dict[str, tuple[int, int]], room: int | None, *, stay: bool) -> str:
    """Return in words whether the models stay, and what they need."""
    if room is None:
        return "all models stay in memory"
    need = sum(held for held, _ in kept.values()) + max((peak for _, peak in kept.values()), default=0)
    numbers = f"together they need {need / 1e9:.1f} GB of {room / 1e9:.1f} GB"
    if stay:
        return f"all models stay on the device: {numbers}"
    return f"the models take turns on the device, moved between the timed steps: {numbers}"


def _reason(cause: BaseException) -> tuple[str, str]:
    if isinstance(cause, UserError):
        problem = cause.problems[0]
        return problem.what, problem.mend or ""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"fails: {type(cause).__name__}: {' '.join(lines[:2])[:240]}", ""
