"""Whole training steps of several models side by side: forward, loss, backward, optimiser; no Lightning trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.inference.forecaster import Forecaster
from etesian.kernels.machine import Machine
from etesian.runtime.device import DeviceClock
from etesian.runtime.prepare import prepare_model
from etesian.runtime.step_graphs import StepGraphs
from etesian.training.experiment import Experiment
from etesian.training.fit import build_datamodule, build_forecaster, build_module
from etesian.training.optimizer import build_optimizer, clip_gradients, learning_rate_factor
from etesian.training.step_times import StepsResult, norm_of_gradients, time_models


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
    batch = first_batch(first)
    on_device = batch.to(device)
    weights: dict[str, Tensor] = {}
    makers = {name: partial(StepModel, experiment, graph, on_device, weights) for name, experiment in variants}
    samples = batch.shape[0] * config.training.accum_grad_batches
    with _deterministic(config.training.deterministic):
        results, memory = time_models(
            makers, DeviceClock(device), samples=samples, repeats=repeats, min_seconds=min_seconds, say=say
        )
    for result in results:
        result.own = result.name == own
    ordered = sorted(results, key=lambda result: result.step.median if result.step else float("inf"))
    return StepsBench(
        ordered, tuple(batch.shape), config.training.accum_grad_batches, config.task.rollout.start, memory
    )


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
        forecaster = self.make_forecaster(experiment, graph, weights)
        self.module = build_module(experiment, forecaster, graph, 1).train()
        self.machine = Machine(batch.device, training.precision)
        self.batch = batch.to(self.machine.parameters)
        self.accumulated, self.clip = training.accum_grad_batches, training.gradient_clip
        self.optimizer = build_optimizer(training.optimization, self.module.parameters())
        start = learning_rate_factor(training.optimization.lr_scheduler, training.optimization.lr, 1_000_000)(0)
        for group in self.optimizer.param_groups:
            group["lr"] *= start
        self.scaler = torch.amp.GradScaler(batch.device.type, enabled=training.precision == "16-mixed")
        self.recorded: StepGraphs | None = None
        if self.module.recorder is not None:
            self.recorded = StepGraphs(
                self.module, self._forward, self._backward, self.module.recorder, accumulates=self.accumulated > 1
            )
        self.loss: Tensor | None = None

    def make_forecaster(self, experiment: Experiment, graph: HeteroData, weights: dict[str, Tensor]) -> Forecaster:
        """Make the forecaster, prepared to run, with its first weights."""
        forecaster = build_forecaster(experiment, graph)
        _share(forecaster, weights)
        self.compilation = prepare_model(forecaster.model, experiment.config.model, experiment.kernels)
        return forecaster

    def step(self, number: int = 0) -> None:
        """Take one optimiser step."""
        if self.recorded is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.recorded.zero_grad()
        for _ in range(self.accumulated):
            loss = self._forward_backward() if self.recorded is None else self.recorded.run(self.batch)
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

    def to(self, device: torch.device) -> None:
        """Move weights and optimiser; gradients are dropped, as the next step drops them."""
        self.drop()
        self.module.to(device)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim():  # the count of steps stays where AdamW keeps it
                    state[name] = value.to(device)

    def drop(self) -> None:
        """Drop the gradients and what was recorded."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.recorded is not None:
            self.recorded.forget()

    def gradient_norm(self) -> float:
        """Return the norm of all gradients of the last step, as the optimiser got them."""
        return norm_of_gradients(self.module)

    def graphs(self) -> int:
        """Return how many graphs torch compiled.

        Raises
        ------
        UserError
            If an entry compiled nothing.
        """
        self.compilation.check()
        return self.compilation.graphs


def first_batch(experiment: Experiment) -> Tensor:
    """Return the first training batch of one process, (B, T, E, G, V), physical units."""
    rollout = experiment.config.task.rollout.start
    loader = build_datamodule(experiment).loader("training", rollout, 0, 1, shuffle=True)
    indices = next(iter(loader.batch_sampler))  # type: ignore[arg-type]
    return torch.stack([loader.dataset[index]["x"] for index in indices])


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
