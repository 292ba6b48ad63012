"""What the benchmark profiler costs: whole trainings with and without it that take turns, compared step by step."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from etesian.commands.common import cache_dir, check_tree
from etesian.compose import compose
from etesian.runtime.device import synchronize
from etesian.runtime.prepare import prepare_model
from etesian.training.benchmark_profiler import BenchmarkProfiler
from etesian.training.experiment import Experiment, check_experiment
from etesian.training.fit import build_datamodule, build_forecaster, build_module, computation, quieten_lightning
from etesian.training.profile import of_steps

WARM_UP = 8


class Seconds(Callback):
    """Takes the time of each step: the processor's, or on a GPU the wall clock's over all steps after the warm-up."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.last = 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.strategy.root_device.type == "cuda":
            if trainer.global_step in (WARM_UP, trainer.max_steps):
                synchronize(trainer.strategy.root_device)
                now = time.perf_counter()
                if trainer.global_step == trainer.max_steps:
                    self.times.append(now - self.last)
                self.last = now
            return
        now = time.process_time()
        if trainer.global_step > WARM_UP:
            self.times.append(now - self.last)
        self.last = now


def cost(words: list[str], *, rounds: int, steps: int, device: str) -> list[float]:
    """Return for each round the time of a step with the profiler over that without."""
    name, overrides = words[1], words[2:]
    config = of_steps(
        check_tree(compose(name, None, [*overrides, "diagnostics.benchmark_profiler.mode=simple"])), steps
    )
    experiment = check_experiment(config, cache_dir())
    assert experiment.device.type == device
    quieten_lightning()
    ratios = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        taken = {profiled: one(experiment, steps, profiled=profiled) for profiled in order}
        ratios.append(taken[True] / taken[False])
    return ratios


def one(experiment: Experiment, steps: int, *, profiled: bool) -> float:
    """Train from the start and return the median time of a step."""
    config = experiment.config
    torch.manual_seed(0)
    graph = experiment.load_graph()
    forecaster = build_forecaster(experiment, graph)
    compilation = prepare_model(forecaster.model, config.model, experiment.kernels)
    module = build_module(experiment, forecaster, graph, steps)
    profiler = BenchmarkProfiler(config, experiment.device, Path("cost"), compilation)
    seconds = Seconds()
    trainer = pl.Trainer(
        **computation(config),
        profiler=profiler.clock if profiled else None,
        callbacks=[seconds, *([profiler] if profiled else [])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, build_datamodule(experiment))
    return statistics.median(seconds.times)
