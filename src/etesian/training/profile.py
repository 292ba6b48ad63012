"""The command ``profile``: steps of an experiment's training, timed, and nothing else of a run."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from etesian.files import write_text
from etesian.kernels.failures import naming_kernels
from etesian.kernels.record import table as kernels_table
from etesian.runtime.prepare import prepare_model
from etesian.schema.config import Config
from etesian.training.benchmark_profiler import BenchmarkProfiler
from etesian.training.compiled import CompiledGraphs
from etesian.training.experiment import Experiment
from etesian.training.finite import FiniteLosses
from etesian.training.fit import build_datamodule, build_forecaster, build_module, computation
from etesian.training.processes import together
from etesian.training.progress import RunProgress
from etesian.training.quiet import quieten_lightning
from etesian.training.run_folder import config_text, resolved
from etesian.training.run_steps import samples_a_step


def profile_training(experiment: Experiment, steps: int, folder: Path) -> None:
    """Train the untrained model for some steps as a run would, and report where their time goes.

    No validation, checkpoints, scores, pictures or logs.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment with ``diagnostics.benchmark_profiler.mode`` simple or detailed.
    steps : int
        Optimiser steps, the warm-up included; the epochs go on as long as needed.
    folder : Path
        Where the results are written once the steps are done.

    Raises
    ------
    UserError
        If a loss is no number, or a layer of a slot fails.
    """
    config = of_steps(experiment.config, steps)
    quieten_lightning()
    pl.seed_everything(config.training.seed, workers=False, verbose=False)
    graph = experiment.load_graph()
    forecaster = build_forecaster(experiment, graph)
    compilation = prepare_model(forecaster.model, config.model, experiment.kernels)
    module = build_module(experiment, forecaster, graph, steps)
    profiler = BenchmarkProfiler(config, experiment.device, folder, compilation)
    callbacks: list[Callback] = [FiniteLosses(config.diagnostics.log.interval)]
    if compilation.entries:
        callbacks.append(CompiledGraphs(compilation))
    if config.diagnostics.enable_progress_bar:
        callbacks.append(RunProgress(samples_a_step(config)))
    trainer = pl.Trainer(
        **computation(config),
        profiler=profiler.clock,
        callbacks=[*callbacks, profiler],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=config.diagnostics.enable_progress_bar,
        limit_val_batches=0,
        num_sanity_val_steps=0,
    )
    if trainer.is_global_zero:
        console = Console()
        console.print(kernels_table(experiment.kernels.records))
        parameters = sum(parameter.numel() for parameter in forecaster.model.parameters())
        warm_up = f"{steps} steps, of which {config.diagnostics.benchmark_profiler.untimed} are not timed"
        console.print(f"{parameters:,} parameters on {profiler.device_clock.name}; {warm_up}", highlight=False)
    with together(trainer, last=True), naming_kernels(experiment.kernels):
        trainer.fit(module, build_datamodule(experiment))
        if trainer.is_global_zero:
            write_text(folder / "config.yaml", config_text(resolved(config)))
        trainer.strategy.barrier("profile")


def of_steps(config: Config, steps: int) -> Config:
    """Return the config of a run that ends after so many optimiser steps, however many epochs they take."""
    training = config.training.model_copy(update={"max_steps": steps, "max_epochs": None})
    return config.model_copy(update={"training": training})
