"""Whole training steps of several models side by side: forward, loss, backward, optimiser; no Lightning trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.errors import UserError
from etesian.kernels.bench.compiled import forget_compiled
from etesian.kernels.bench.timing import Spread, interleave
from etesian.kernels.machine import Machine
from etesian.runtime.device import DeviceClock
from etesian.runtime.prepare import prepare_model
from etesian.runtime.step_graphs import StepGraphs
from etesian.training.experiment import Experiment
from etesian.training.fit import build_datamodule, build_forecaster, build_module
from etesian.training.optimizer import build_optimizer, clip_gradients, learning_rate_factor

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
        The presets it is made with.
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
    first_loss : float or None
        Loss of the first step.
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
    reason: str = ""
    mend: str = ""


@dataclass(frozen=True)
class StepsBench:
    """What was found, and under which circumstances.

    Attributes
    ----------
    results : list of StepsResult
        The fastest first; those that were not timed last.
    batch : tuple of int
        Shape of the batch: batch, time, ensemble, grid points, variables.
    accumulated : int
        Batches a step.
    rollout : int
        States forecast a batch.
    memory : str
        Whether all models stayed on the device, or took turns.
    """

    results: list[StepsResult]
    batch: tuple[int, ...]
    accumulated: int
    rollout: int
    memory: str


def bench_steps(
    variants: Sequence[tuple[str, Experiment]],
    *,
    own: str,
    repeats: int,
    min_seconds: float,
    device: torch.device,
    say: Callable[[str], None] = lambda text: None,
) -> StepsBench:
    """Time training steps of models in turns, on one batch, with one set of first weights where names match.

    Parameters
    ----------
    variants : sequence of (str, Experiment)
        Name and experiment of each model; experiments that differ in their kernels and in what is compiled alone.
    own : str
        Name of the one that is the experiment as configured.
    repeats : int
        Rounds.
    min_seconds : float
        Time that all samples of one model take together at least.
    device : torch.device
        Where.
    say : callable
        Is told what has been done, a line for each model.
    """
    first = variants[0][1]
    config, graph = first.config, first.load_graph()
    clock = DeviceClock(device)
    batch = first_batch(first)
    on_device = batch.to(device)
    room = clock.free_bytes()
    forget_compiled()
    weights: dict[str, Tensor] = {}
    results, models = [], {}
    kept: dict[str, tuple[int, int]] = {}
    with _deterministic(config.training.deterministic):
        for name, experiment in variants:
            result = StepsResult(name, own=name == own)
            results.append(result)
            try:
                model = StepModel(experiment, graph, on_device, weights)
                kept[name] = _visit(model, result, clock)
                models[name] = model
                say(f"{name}: first step {result.first_step_seconds:.1f} s")
            except Exception as cause:  # whatever a kernel or a compiler raises
                result.reason, result.mend = _reason(cause)
                say(f"{name}: {result.reason}")
            clock.release()
        stay = _all_fit(kept, room)
        turns = Turns(models, device, stay=stay)
        if models:
            times = interleave(
                {name: model.step for name, model in models.items()}, clock, repeats=repeats, min_seconds=min_seconds,
                prepare={name: turns.let_in(name) for name in models}, queued=False,
            )  # fmt: skip
            for result in results:
                if result.name in times:
                    result.step = times[result.name].call
                    samples = batch.shape[0] * config.training.accum_grad_batches
                    result.samples_per_second = 1e3 * samples / result.step.median
    ordered = sorted(results, key=lambda result: result.step.median if result.step else float("inf"))
    return StepsBench(
        ordered, tuple(batch.shape), config.training.accum_grad_batches, config.task.rollout.start,
        _memory_note(kept, room, stay=stay),
    )  # fmt: skip


class StepModel:
    """A model with its optimiser, made and moved outside what is timed.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment.
    graph : HeteroData
        Its graph.
    batch : Tensor, shape (B, T, E, G, V)
        On the device of the run.
    weights : dict
        First weights by name; those that are there are taken, the others are added.
    """

    def __init__(self, experiment: Experiment, graph: HeteroData, batch: Tensor, weights: dict[str, Tensor]) -> None:
        training = experiment.config.training
        torch.manual_seed(training.seed)
        forecaster = build_forecaster(experiment, graph)
        _share(forecaster, weights)
        self.compilation = prepare_model(forecaster.model, experiment.config.model, experiment.kernels)
        self.module = build_module(experiment, forecaster, graph, 1).train()
        self.machine = Machine(batch.device, training.precision)
        self.batch = batch.to(self.machine.parameters)
        self.accumulated, self.clip = training.accum_grad_batches, training.gradient_clip
        self.optimizer = build_optimizer(training.optimization, self.module.parameters())
        start = learning_rate_factor(training.optimization.lr_scheduler, training.optimization.lr, 1_000_000)(0)
        for group in self.optimizer.param_groups:
            group["lr"] *= start
        self.scaler = torch.amp.GradScaler(batch.device.type, enabled=training.precision == "16-mixed")
        self.graphs: StepGraphs | None = None
        if self.module.recorder is not None:
            self.graphs = StepGraphs(self.module, self._forward, self._backward, self.module.recorder)
        self.loss: Tensor | None = None

    def step(self, number: int = 0) -> None:
        """Take one optimiser step."""
        if self.graphs is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.graphs.zero_grad()
        for _ in range(self.accumulated):
            loss = self._forward_backward() if self.graphs is None else self.graphs.run(self.batch)
        if self.clip.val is not None:
            self.scaler.unscale_(self.optimizer)
            clip_gradients(self.module.parameters(), self.clip.val, self.clip.algorithm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.loss = loss.detach()

    def _forward_backward(self) -> Tensor:
        loss = self._forward(self.batch)
        self._backward(loss)
        return loss

    def _forward(self, x: Tensor) -> Tensor:
        with self.machine.context():
            return self.module.mean_loss(x)

    def _backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss / self.accumulated).backward()

    def clear(self) -> None:
        """Drop gradients and what was recorded: the next step begins as the first one did."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphs is not None:
            self.graphs.forget()

    def to(self, device: torch.device) -> None:
        """Move weights and optimiser; gradients are dropped, as the next step drops them."""
        self.clear()
        self.module.to(device)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim():  # the count of steps stays where AdamW keeps it
                    state[name] = value.to(device)


class Turns:
    """Which models are on the device.

    Parameters
    ----------
    models : dict
        The models, on the CPU.
    device : torch.device
        The device.
    stay : bool
        Whether a model that is there stays there.
    """

    def __init__(self, models: dict[str, StepModel], device: torch.device, *, stay: bool) -> None:
        self.models, self.device, self.stay = models, device, stay
        self.there: list[str] = []

    def let_in(self, name: str) -> Callable[[], None]:
        """Return what brings a model to the device, others away if need be, and warms it up."""

        def work() -> None:
            if name in self.there:
                return
            if not self.stay:
                for other in self.there:
                    self.models[other].to(torch.device("cpu"))
                self.there.clear()
            self.models[name].to(self.device)
            self.there.append(name)
            self.models[name].step()

        return work


def first_batch(experiment: Experiment) -> Tensor:
    """Return the first training batch of one process, (B, T, E, G, V), physical units."""
    rollout = experiment.config.task.rollout.start
    loader = build_datamodule(experiment).loader("training", rollout, 0, 1, shuffle=True)
    indices = next(iter(loader.batch_sampler))  # type: ignore[arg-type]
    return torch.stack([loader.dataset[index]["x"] for index in indices])


def _visit(model: StepModel, result: StepsResult, clock: DeviceClock) -> tuple[int, int]:
    """Let a model take its first steps alone on the device; return what it keeps there and what a step takes beside."""
    before = clock.held_bytes() or 0
    try:
        model.to(clock.device)
        start = time.perf_counter()
        model.step()
        assert model.loss is not None
        result.first_loss = float(model.loss)  # waits for the device
        result.first_step_seconds = time.perf_counter() - start
        for _ in range(WARM_UP):
            model.step()
        model.compilation.check()
        result.graphs = sum(compiled.backend.graphs for compiled in model.compilation.entries)
        model.clear()  # what a recorded step takes is counted while it is recorded
        held = clock.held_bytes() or 0
        peak = clock.peak_bytes(model.step)
        result.peak_bytes = None if peak is None else held + peak
        kept = held - before if model.graphs is None else held - before + (peak or 0)  # a recording keeps its memory
        return kept, peak or 0
    finally:
        model.to(torch.device("cpu"))


def _all_fit(kept: dict[str, tuple[int, int]], room: int | None) -> bool:
    if room is None or not kept:
        return True
    return sum(held for held, _ in kept.values()) + max(peak for _, peak in kept.values()) < ROOM * room


def _memory_note(kept: dict[str, tuple[int, int]], room: int | None, *, stay: bool) -> str:
    if room is None:
        return "all models stay in memory"
    need = sum(held for held, _ in kept.values()) + max((peak for _, peak in kept.values()), default=0)
    numbers = f"together they need {need / 1e9:.1f} GB of {room / 1e9:.1f} GB"
    if stay:
        return f"all models stay on the device: {numbers}"
    return f"the models take turns on the device, moved between the timed steps: {numbers}"


def _share(module: torch.nn.Module, weights: dict[str, Tensor]) -> None:
    """Take the weights that are there under a name with the same shape, and add those that are not."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in weights and weights[name].shape == parameter.shape:
                parameter.copy_(weights[name])
            else:
                weights.setdefault(name, parameter.detach().clone())


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _reason(cause: BaseException) -> tuple[str, str]:
    if isinstance(cause, UserError):
        problem = cause.problems[0]
        return problem.what, problem.mend or ""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"fails: {type(cause).__name__}: {' '.join(lines[:2])[:240]}", ""


def steps_json(bench: StepsBench) -> dict[str, Any]:
    """Return what was found in plain values."""
    return {
        "batch": dict(zip(("batch", "time", "ensemble", "grid_points", "variables"), bench.batch, strict=True)),
        "batches_a_step": bench.accumulated,
        "rollout": bench.rollout,
        "memory": bench.memory,
        "presets": [
            {
                "preset": result.name,
                "own": result.own,
                "step_ms": None if result.step is None else {
                    "median": result.step.median, "min": result.step.low, "max": result.step.high,
                },
                "samples_per_second": result.samples_per_second,
                "first_step_seconds": result.first_step_seconds,
                "peak_bytes": result.peak_bytes,
                "graphs": result.graphs,
                "first_loss": result.first_loss,
                "reason": result.reason or None,
                "mend": result.mend or None,
            }
            for result in bench.results
        ],
    }  # fmt: skip
