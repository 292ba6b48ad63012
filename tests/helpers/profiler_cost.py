"""What the benchmark profiler costs: one training in which steps with it and without it take turns."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import PassThroughProfiler

from etesian.commands.common import cache_dir, check_tree
from etesian.compose import compose
from etesian.runtime.device import synchronize
from etesian.runtime.prepare import prepare_model
from etesian.training.benchmark_profiler import BenchmarkProfiler
from etesian.training.experiment import check_experiment
from etesian.training.fit import build_datamodule, build_forecaster, build_module, computation, quieten_lightning
from etesian.training.profile import of_steps


class TakingTurns(Callback):
    """Attaches and detaches the profiler every `block` steps and takes the time of each block.

    Of a CPU the seconds are those that this process computed, which other processes disturb least; of a GPU those of
    the wall clock, the device waited for at both ends of a block.
    """

    def __init__(self, profiler: BenchmarkProfiler, block: int) -> None:
        self.profiler, self.block = profiler, block
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self.began: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.profiler.on_train_start(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step % self.block:
            return
        device = trainer.strategy.root_device
        synchronize(device)
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        attached = trainer.profiler is self.profiler.clock
        if self.began is not None and trainer.global_step > 2 * self.block:
            self.times[attached].append((clock() - self.began) / self.block)
        self.profiler.clock.unwatch()
        if attached:
            trainer.profiler = PassThroughProfiler()
        else:
            trainer.profiler = self.profiler.clock
            self.profiler.clock.watch(pl_module.forecaster.model, pl_module.loss, None)
        self.began = clock()


def cost(words: list[str], *, steps: int, block: int) -> tuple[float, float]:
    """Return the median seconds of a step without and with the profiler."""
    mode = "diagnostics.benchmark_profiler.mode=simple"
    config = of_steps(check_tree(compose(words[1], None, [*words[2:], mode])), steps)
    experiment = check_experiment(config, cache_dir())
    quieten_lightning()
    torch.manual_seed(0)
    graph = experiment.load_graph()
    forecaster = build_forecaster(experiment, graph)
    compilation = prepare_model(forecaster.model, config.model, experiment.kernels)
    profiler = BenchmarkProfiler(config, experiment.device, Path("cost"), compilation)
    turns = TakingTurns(profiler, block)
    trainer = pl.Trainer(
        **computation(config),
        profiler=profiler.clock,
        callbacks=[turns],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    trainer.fit(build_module(experiment, forecaster, graph, steps), build_datamodule(experiment))
    assert min(len(turns.times[True]), len(turns.times[False])) >= 10
    assert len(profiler.clock.steps) >= len(turns.times[True]) - 10
    return statistics.median(turns.times[False]), statistics.median(turns.times[True])
