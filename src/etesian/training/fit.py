"""One run of training, from a checked experiment to scores and pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import Strategy
from rich.console import Console
from torch_geometric.data import HeteroData

from etesian.checkpoint.content import describe_experiment
from etesian.checkpoint.inference import InferenceCheckpoint
from etesian.checkpoint.read import load_checkpoint
from etesian.data.description import coordinates_of, describe_dataset
from etesian.files import write_json
from etesian.inference.assemble import assemble_forecaster
from etesian.inference.forecaster import Forecaster
from etesian.kernels.failures import naming_kernels
from etesian.kernels.record import table as kernels_table
from etesian.kernels.record import to_json as kernels_json
from etesian.runtime.checkpointing import describe_checkpointing
from etesian.runtime.compile import Compilation
from etesian.runtime.device import BatchCopies, GraphRecorder
from etesian.runtime.prepare import prepare_model
from etesian.schema.config import Config
from etesian.training.benchmark_profiler import BenchmarkProfiler, check_length
from etesian.training.build_loss import build_loss
from etesian.training.checkpoints import LAST, AtomicCheckpointIO, RunState, checkpoint_callbacks
from etesian.training.choices import chosen_callbacks, describe_choices
from etesian.training.compiled import CompiledGraphs
from etesian.training.datamodule import ForecastDataModule
from etesian.training.environment import environment
from etesian.training.experiment import Experiment
from etesian.training.finite import FiniteLosses
from etesian.training.freezing import freeze
from etesian.training.log_experiment import log_experiment
from etesian.training.loss_context import LossContext
from etesian.training.metrics_csv import MetricsCSV
from etesian.training.module import ForecastModule
from etesian.training.processes import DataParallel, together
from etesian.training.progress import RunProgress
from etesian.training.quiet import quieten_lightning
from etesian.training.ranks import Ranks
from etesian.training.run_folder import RunFolder, resolved
from etesian.training.run_lock import RunLock
from etesian.training.run_steps import epoch_steps, samples_a_step, steps_of_run
from etesian.training.sharded import FullySharded
from etesian.training.shared_model import SharedModel
from etesian.training.slurm_environment import SlurmProcesses
from etesian.training.start import prepare_start, starting_checkpoint
from etesian.training.stop_request import Stopped, StopRequest
from etesian.training.stopping import StopAfterStep


def build_forecaster(experiment: Experiment, graph: HeteroData) -> Forecaster:
    """Make the untrained forecaster of an experiment.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment.
    graph : HeteroData
        Its graph.
    """
    config, statistics = experiment.config, experiment.splits.training.statistics
    return assemble_forecaster(config, experiment.variables, statistics, graph, experiment.kernels)


def build_datamodule(experiment: Experiment) -> ForecastDataModule:
    """Make what serves the batches of an experiment."""
    config, imputer = experiment.config, experiment.config.data.processors.imputer
    pinned = config.dataloader.pin_memory
    if pinned is None:
        pinned = config.system.hardware.accelerator == "cuda"
    return ForecastDataModule(
        experiment.splits,
        config.dataloader.model_copy(update={"pin_memory": pinned}),
        config.task,
        experiment.step,
        frozenset(imputer.mean) | frozenset(imputer.constant),
        config.training.seed,
        BatchCopies(experiment.device) if config.dataloader.prefetch_to_device else None,
    )


def build_module(experiment: Experiment, forecaster: Forecaster, graph: HeteroData, run_steps: int) -> ForecastModule:
    """Make what is trained: the forecaster with its loss, optimiser and schedule, in the precision of its weights."""
    training = experiment.config.training
    loss = build_loss(LossContext(experiment.config, experiment.variables, experiment.splits, graph))
    recorder = GraphRecorder(experiment.device) if training.cuda_graphs else None
    sharers = experiment.config.system.hardware.num_gpus_per_model
    shared = SharedModel(graph, sharers, experiment.config.model) if sharers > 1 else None
    task, optimization = experiment.config.task, training.optimization
    outputs = experiment.variables.output
    logged = {name: outputs.index(name) for name in experiment.config.diagnostics.log.logged(outputs)}
    freeze(forecaster.model, training.freeze)
    module = ForecastModule(forecaster, loss, task, optimization, run_steps, recorder, shared, logged)
    if training.precision == "64-true":
        module.double()  # before weights are restored, which would round them to 32 bits
    return module


@dataclass(frozen=True)
class Trained:
    """What a run leaves in memory: the forecaster with the best weights, and where it came from."""

    forecaster: Forecaster
    graph: HeteroData
    datamodule: ForecastDataModule
    trainer: pl.Trainer
    checkpoint: Path
    device: torch.device
    shared: SharedModel | None = None


def train(
    experiment: Experiment, run: RunFolder, command: list[str], stop: StopRequest, lock: RunLock | None,
    loggers: Sequence[Logger] = (),
) -> Trained:  # fmt: skip
    """Train an experiment in a run folder, or go on with the run that is there.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment.
    run : RunFolder
        Where it is written; an existing run goes on from its last checkpoint.
    command : list of str
        The command line, for the record.
    stop : StopRequest
        Who asked the run to stop, if anyone does.
    lock : RunLock, optional
        That of the run folder, which the first process holds.
    loggers : sequence of Logger
        Those beside ``metrics.csv``, in the first process.

    Returns
    -------
    Trained
        The forecaster with the weights of the best validation loss.

    Raises
    ------
    UserError
        If the run can't go on under this config, or a layer of a slot fails.
    Stopped
        If it was asked to stop, once that step is done and ``last.ckpt`` written.
    """
    config = experiment.config
    start = starting_checkpoint(experiment, run)
    quieten_lightning()
    pl.seed_everything(config.training.seed, workers=False, verbose=False)
    graph = experiment.load_graph()
    forecaster = build_forecaster(experiment, graph)
    compilation = prepare_model(forecaster.model, config.model, experiment.kernels)
    datamodule = build_datamodule(experiment)
    run_steps = steps_of_run(config, datamodule)
    check_length(config.diagnostics.benchmark_profiler, run_steps, "diagnostics.benchmark_profiler")
    content = describe(experiment, graph, run.run_id, command)
    inference = InferenceCheckpoint(run.checkpoints, content, experiment.device)
    stopping = StopAfterStep(stop, run.checkpoints, config.diagnostics.log.interval, lock)
    trainer = build_trainer(experiment, content, run, run_steps, compilation, inference, stopping, loggers)
    module = build_module(experiment, forecaster, graph, run_steps)
    origin, path = "new", None
    if start is not None:
        path, origin = prepare_start(start, experiment, run, module, datamodule, trainer)
    if trainer.is_global_zero:
        run.create()
        _introduce(experiment, run, module, compilation, origin)
        for line in [*(start.changes if start is not None else ()), *inference.needs()]:
            print(line, flush=True)
        first_epoch = epoch_steps(config, datamodule, config.task.rollout.start)
        if path is None and run_steps < first_epoch * config.diagnostics.check_val_every_n_epoch:
            print("The run ends before its first validation: there is no best.ckpt, last.ckpt is scored", flush=True)
        run.write_config(resolved(config))
        write_json(run.path / "kernels.json", kernels_json(experiment.kernels.records))
        write_json(run.path / "environment.json", content["run"]["environment"])
    del start
    with together(trainer), naming_kernels(experiment.kernels):
        log_experiment(trainer.loggers, resolved(config), experiment.kernels.records)
        trainer.fit(module, datamodule, ckpt_path=path, weights_only=False)
        if stopping.after_training is not None:
            raise Stopped(stopping.after_training)
        trainer.strategy.barrier("best checkpoint")
        if trainer.is_global_zero and not inference.written:  # the run was done already, or was ended in between
            inference.write(load_checkpoint(run.checkpoints / LAST), run.checkpoints / LAST)
        best = run.checkpoints / "best.ckpt"
        chosen = best if best.is_file() else run.checkpoints / "last.ckpt"
        if isinstance(trainer.strategy, FullySharded):  # a process alone could not run what is divided
            module.forecaster = forecaster = build_forecaster(experiment, graph)
            prepare_model(forecaster.model, config.model, experiment.kernels)
            if config.training.precision == "64-true":
                module.double()
        module.load_state_dict(torch.load(chosen, map_location="cpu", weights_only=False)["state_dict"])
    return Trained(forecaster.eval(), graph, datamodule, trainer, chosen, trainer.strategy.root_device, module.shared)


def describe(experiment: Experiment, graph: HeteroData, run_id: str, command: list[str]) -> dict[str, Any]:
    """Return what the checkpoints of a run hold of its experiment."""
    data = experiment.splits.training
    return describe_experiment(
        resolved(experiment.config),
        experiment.kernels.records,
        experiment.variables,
        data.statistics,
        graph,
        dataset=describe_dataset(data, experiment.step),
        coordinates=coordinates_of(data),
        run={"id": run_id, "environment": environment(command)},
    )


def build_trainer(
    experiment: Experiment,
    content: dict[str, Any],
    run: RunFolder,
    run_steps: int,
    compilation: Compilation | None = None,
    inference: InferenceCheckpoint | None = None,
    stopping: StopAfterStep | None = None,
    loggers: Sequence[Logger] = (),
) -> pl.Trainer:
    """Make Lightning's trainer from the sections ``training``, ``diagnostics`` and ``system``.

    A run shorter than ``diagnostics.log.interval`` logs its last step.
    """
    config = experiment.config
    training, diagnostics = config.training, config.diagnostics
    callbacks: list[Callback] = [
        RunState(content),
        *chosen_callbacks(training),
        *([CompiledGraphs(compilation)] if compilation is not None and compilation.entries else []),
        FiniteLosses(diagnostics.log.interval),
        *checkpoint_callbacks(diagnostics.checkpoint, run.checkpoints),
        *([stopping] if stopping is not None else []),
    ]
    if diagnostics.enable_progress_bar:
        callbacks.append(RunProgress(samples_a_step(config)))
    profiler = None
    if diagnostics.benchmark_profiler.mode != "none":
        profiler = BenchmarkProfiler(config, experiment.device, run.path / "profiler", compilation)
        callbacks.append(profiler)
    return pl.Trainer(
        **computation(config, experiment.ranks),
        num_sanity_val_steps=training.num_sanity_val_steps,
        check_val_every_n_epoch=diagnostics.check_val_every_n_epoch,
        log_every_n_steps=min(diagnostics.log.interval, run_steps),
        logger=[MetricsCSV(run.path / "metrics.csv"), *loggers],
        callbacks=callbacks,
        profiler=None if profiler is None else profiler.clock,
        plugins=[AtomicCheckpointIO(inference), *([SlurmProcesses()] if experiment.ranks is not None else [])],
        default_root_dir=run.path,
        enable_progress_bar=diagnostics.enable_progress_bar,
    )


def computation(config: Config, ranks: Ranks | None = None) -> dict[str, Any]:
    """Return the options of Lightning's trainer that decide what a step computes; the rest looks on."""
    training, hardware = config.training, config.system.hardware
    return {
        "accelerator": hardware.accelerator,
        "devices": hardware.num_gpus_per_node,
        "num_nodes": hardware.num_nodes,
        "strategy": _strategy(config, ranks),
        "precision": training.precision,
        "max_epochs": training.max_epochs if training.max_epochs is not None else -1,
        "max_steps": training.max_steps if training.max_steps is not None else -1,
        "accumulate_grad_batches": training.accum_grad_batches,
        "gradient_clip_val": training.gradient_clip.val,
        "gradient_clip_algorithm": training.gradient_clip.algorithm,
        "deterministic": training.deterministic,
        "detect_anomaly": config.diagnostics.debug.anomaly_detection,
        "reload_dataloaders_every_n_epochs": int(config.task.rollout.epoch_increment > 0),
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "inference_mode": training.strategy.kind == "ddp",  # what is gathered while validating is trained with later
    }


def _strategy(config: Config, ranks: Ranks | None) -> Strategy | str:
    if config.system.hardware.processes == 1:
        return "auto"
    return FullySharded(config.training, ranks) if config.training.strategy.kind == "fsdp" else DataParallel(ranks)


def _introduce(
    experiment: Experiment,
    run: RunFolder,
    module: ForecastModule,
    compilation: Compilation,
    origin: str,
) -> None:
    """Print what is about to run: the kernels, where the run starts, the size of the model, the samples."""
    console = Console()
    console.print(kernels_table(experiment.kernels.records))
    if module.shared is not None:
        console.print(module.shared.describe(), highlight=False, soft_wrap=True)
    if compilation.entries:
        console.print(f"compiled: {compilation.describe()}", highlight=False)
    if policies := describe_checkpointing(experiment.config.model):
        console.print(f"activation checkpointing: {policies}", highlight=False)
    if experiment.config.training.cuda_graphs:
        console.print("training steps: recorded as CUDA graphs, one for each shape of batch", highlight=False)
    if experiment.config.training.strategy.kind == "fsdp":
        processes = experiment.config.system.hardware.processes
        console.print(f"fsdp: weights, gradients and optimiser state divided among {processes} processes")
    parameters = sum(parameter.numel() for parameter in module.parameters())
    windows = ", ".join(f"{count} {name}" for name, count in experiment.window_counts().items())
    skipped = {name: count for name, count in experiment.skipped_windows().items() if count}
    console.print(f"Run {run.run_id} in {run.path} ({origin})", highlight=False)
    console.print(f"{parameters:,} parameters; windows: {windows}", highlight=False)
    for line in describe_choices(experiment.config.training, module.forecaster.model):
        console.print(line, highlight=False, soft_wrap=True)
    if line := _too_many_workers(experiment.config):
        console.print(line, highlight=False, soft_wrap=True)
    if skipped:
        lost = ", ".join(f"{count} {name}" for name, count in skipped.items())
        console.print(f"left out for missing dates: {lost} windows", highlight=False)


def _too_many_workers(config: Config) -> str:
    """Say that training has more workers than cores; empty where it has not."""
    workers, processes = config.dataloader.num_workers.training, config.system.hardware.num_gpus_per_node
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers * processes <= cores:
        return ""
    each = f" for each of {processes} processes" if processes > 1 else ""
    return f"dataloader.num_workers.training={workers}{each} on {cores} processor cores: fewer may read as quickly"
