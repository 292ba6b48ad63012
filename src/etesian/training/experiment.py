"""The door: a config is checked against the machine, the kernels and the dataset before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from etesian.data.description import units_of
from etesian.data.history import with_initial_states
from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.data.open import Splits, open_splits
from etesian.data.period import timestep_stride
from etesian.data.sampler import GlobalBatchSampler
from etesian.data.variables import Variables
from etesian.data.windows import WindowDataset
from etesian.errors import Problem, UserError, did_you_mean
from etesian.graph.build import DATA_TO_HIDDEN, HIDDEN_TO_DATA, HIDDEN_TO_HIDDEN, check_settings
from etesian.graph.existing import check_edge_sets
from etesian.graph.levels import edges_within, level_names
from etesian.graph.nodes import check_coordinates
from etesian.graph.store import check_path, load_or_build
from etesian.inference.climatology import check_coverage, check_size
from etesian.inference.climatology_file import load_climatology
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import ComponentKernels, resolve_kernels
from etesian.model.bounding import build_bounding
from etesian.model.fields import ModelFields
from etesian.runtime.checkpointing_trial import try_checkpointing
from etesian.runtime.combinations import sharing_problems
from etesian.runtime.device import device_of_process, get_device
from etesian.runtime.entries import collect_entries
from etesian.runtime.graph_trial import try_step_graphs
from etesian.runtime.shards_trial import try_shards
from etesian.runtime.trial import try_compilation
from etesian.schema.config import Config
from etesian.schema.presets import Preset
from etesian.training.ranks import Ranks, agreeing
from etesian.training.scalers import VariableScaler
from etesian.training.tracking.libraries import check_libraries


@dataclass(frozen=True)
class Experiment:
    """A config that has been checked, and what was opened to check it.

    Attributes
    ----------
    config : Config
        The config.
    kernels : ComponentKernels
        The layer kernels it names.
    splits : Splits
        The opened datasets.
    variables : Variables
        Their variables, by role.
    step : int
        Dates of the dataset in one step of the forecast.
    cache_dir : Path
        Folder of graphs and datasets that can be made again.
    device : torch.device
        The device of this process.
    ranks : Ranks, optional
        The processes of this run, where Slurm started several.
    """

    config: Config
    kernels: ComponentKernels
    splits: Splits
    variables: Variables
    step: int
    cache_dir: Path
    device: torch.device
    ranks: Ranks | None = None

    def rollouts(self) -> dict[str, int]:
        """Return the longest rollout of each split, in steps."""
        config, scores = self.config, self.config.diagnostics.scores
        return {
            "training": config.task.rollout.maximum,
            "validation": config.task.validation_rollout,
            "test": scores.lead_times if scores.enabled else 1,
        }

    def windows(self) -> dict[str, WindowDataset]:
        """Return the windows of each split for its longest rollout."""
        imputer = self.config.data.processors.imputer
        imputed = frozenset(imputer.mean) | frozenset(imputer.constant)
        steps = self.config.task.multistep_input
        return {
            name: WindowDataset(getattr(self.splits, name), steps, rollout, self.step, imputed, split=name)
            for name, rollout in self.rollouts().items()
        }

    def window_counts(self) -> dict[str, int]:
        """Return how many windows each split has."""
        return {name: len(windows) for name, windows in self.windows().items()}

    def skipped_windows(self) -> dict[str, int]:
        """Return how many windows of each split are left out because a date is missing."""
        return {name: windows.skipped for name, windows in self.windows().items()}

    def forecast_period(self, split: str) -> tuple[np.datetime64, np.datetime64]:
        """Return the first and the last date of a split that is forecast."""
        windows = self.windows()[split]
        return windows.dates(0)[self.config.task.multistep_input], windows.dates(len(windows) - 1)[-1]

    def load_graph(self) -> HeteroData:
        """Return the graph, from the cache where one fits."""
        data, path = self.splits.training, self.config.system.input.graph
        file = Path(path).expanduser() if path is not None else None
        return load_or_build(data.latitudes, data.longitudes, self.config.graph, file, self.cache_dir)


def check_experiment(
    config: Config,
    cache_dir: Path,
    *,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    preset_slots: Mapping[str, Preset] | None = None,
    local_rank: int = 0,
    probe: bool = True,
    ranks: Ranks | None = None,
    here: bool = True,
) -> Experiment:
    """Check everything that can be checked without training.

    Parameters
    ----------
    config : Config
        A config that fits the schema.
    cache_dir : Path
        Folder of graphs and datasets that can be made again.
    preset : str, optional
        Choice of the group ``model/layer_kernels``, for the record of the kernels.
    overrides : sequence of str
        Overrides of the command line, for the same record.
    preset_slots : mapping, optional
        What the presets have in their files; see :func:`etesian.kernels.resolve.resolve_kernels`.
    local_rank : int
        Number of this process on its machine: the device on which the kernels are tried.
    probe : bool
        Try the kernels and their compilation; without, they are only resolved.
    ranks : Ranks, optional
        The processes of this run, where Slurm started several: none opens data before all have tried their kernels.
    here : bool
        Whether the run takes place on this machine; if not, a GPU is not looked for, and its kernels are not tried.

    Raises
    ------
    UserError
        With what is wrong: first the libraries of the loggers, then the device, then the kernels as named, then as they
        run, then what is compiled, then all that the dataset tells.
    """
    check_libraries(config.diagnostics.log)
    if not here and config.system.hardware.accelerator != "cpu":
        kernels = resolve_kernels(config.model, preset=preset, overrides=overrides, preset_slots=preset_slots)
        return check_data(config, kernels, torch.device("cpu"), cache_dir)
    with agreeing(ranks):
        kernels, device = check_kernels(
            config, preset=preset, overrides=overrides, preset_slots=preset_slots, local_rank=local_rank, probe=probe
        )
    with agreeing(ranks):
        experiment = check_data(config, kernels, device, cache_dir)
    return replace(experiment, ranks=ranks)


def check_data(config: Config, kernels: ComponentKernels, device: torch.device, cache_dir: Path) -> Experiment:
    """Check what comes after the kernels: the datasets, and all that depends on them.

    Raises
    ------
    UserError
        With everything that is wrong.
    """
    splits = open_splits(config.dataloader, config.data, cache_dir)
    data: Any = splits.training
    variables = Variables.from_roles(data.variables, config.data, data.variables_metadata)
    step = timestep_stride(data.dates, config.task.timestep)
    splits = with_initial_states(splits, config.dataloader, cache_dir, step * config.task.multistep_input)
    experiment = Experiment(config, kernels, splits, variables, step, cache_dir, device)
    problems: list[Problem] = []
    for check in (_check_windows, _check_processors, _check_names, _check_graph, _check_climatology):
        problems.extend(_caught(check, experiment))
    if problems:
        raise UserError.collect(dict.fromkeys(problems))
    return experiment


def check_kernels(
    config: Config,
    *,
    preset: str | None,
    overrides: Sequence[str],
    preset_slots: Mapping[str, Preset] | None = None,
    local_rank: int = 0,
    probe: bool = True,
) -> tuple[ComponentKernels, torch.device]:
    """Check what comes before the dataset: devices, kernels, compilation; the arguments are `check_experiment`'s.

    Returns
    -------
    kernels : ComponentKernels
        What was resolved.
    device : torch.device
        That of this process.
    """
    _check_device(config)
    kernels = resolve_kernels(config.model, preset=preset, overrides=overrides, preset_slots=preset_slots)
    if config.system.hardware.num_gpus_per_model > 1:
        problems = sharing_problems(config.model, collect_entries(config.model, kernels))
        if problems:
            raise UserError.collect(problems)
    device = device_of_process(config.system.hardware.accelerator, local_rank)
    if probe:
        probe_kernels(kernels, config.model, device, config.training.precision)
        try_checkpointing(config.model, kernels, device, config.training.precision)
        try_compilation(config.model, kernels, device, config.training.precision)
        if config.training.strategy.kind == "fsdp":
            try_shards(config.model, kernels, device, config.training.precision)
        if config.training.cuda_graphs:
            try_step_graphs(config.model, kernels, device, config.training.precision)
    return kernels, device


def _caught(check: Callable[[Experiment], None], experiment: Experiment) -> Sequence[Problem]:
    try:
        check(experiment)
    except UserError as error:
        return error.problems
    return ()


def _check_device(config: Config) -> None:
    hardware = config.system.hardware
    if hardware.accelerator == "cpu":
        return
    fewer = ", or fewer with system.hardware.num_gpus_per_node"
    try:
        get_device(f"{hardware.accelerator}:{hardware.num_gpus_per_node - 1}")
    except UserError as error:
        raise UserError(
            f"system.hardware asks for {hardware.num_gpus_per_node} {hardware.accelerator!r}: {error.args[0]}",
            where="system.hardware",
            mend="system=cpu" + fewer * (hardware.num_gpus_per_node > 1),
        ) from error


def _check_windows(experiment: Experiment) -> None:
    """Check that each split has a window, training a whole batch, and the test split the sample that is drawn."""
    config, counts = experiment.config, experiment.window_counts()
    processes = config.system.hardware.model_copies
    GlobalBatchSampler(
        counts["training"], config.dataloader.batch_size.training, 0, processes, 0, shuffle=False, pad=False
    )
    sample = config.diagnostics.plot.sample_idx
    if config.diagnostics.plot.enabled and sample >= counts["test"]:
        raise UserError(
            f"diagnostics.plot.sample_idx={sample} is not in the test period",
            where="diagnostics.plot.sample_idx",
            allowed=f"a whole number from 0 to {counts['test'] - 1}",
        )


def _check_processors(experiment: Experiment) -> None:
    """Check normaliser and imputer against the dataset, and the bounds, which are given in physical units."""
    config, variables = experiment.config, experiment.variables
    statistics, processors = experiment.splits.training.statistics, config.data.processors
    Imputer(variables, statistics, processors.imputer)
    normalizer = Normalizer(variables, statistics, processors.normalizer)
    fields = ModelFields(
        variables.input,
        variables.output,
        config.task.multistep_input,
        normalizer.scale[variables.data_output],
        normalizer.offset[variables.data_output],
    )
    build_bounding(config.model.bounding, fields, residual=config.model.residual.kind == "skip")


def _check_graph(experiment: Experiment) -> None:
    config = experiment.config
    if config.graph.existing is not None:  # read and compared now, so that a graph of another grid stops at the door
        wanted = {DATA_TO_HIDDEN, HIDDEN_TO_DATA}
        if "hidden2hidden" in config.model.processor.edge_sets:
            wanted |= {HIDDEN_TO_HIDDEN, *edges_within(level_names(config.graph.num_levels))}
        check_edge_sets(experiment.load_graph(), wanted, str(config.system.input.graph))
        return
    check_settings(config.graph)
    check_coordinates(experiment.splits.training.latitudes, experiment.splits.training.longitudes)
    if config.system.input.graph is not None:
        check_path(Path(config.system.input.graph).expanduser())


def _check_climatology(experiment: Experiment) -> None:
    """Check that the climatology can be made and has a value for every date that is scored."""
    scores, splits = experiment.config.diagnostics.scores, experiment.splits
    if not scores.enabled or scores.climatology == "none":
        return
    if scores.climatology_file is not None:
        data, units = splits.training, units_of(splits.training)
        load_climatology(
            Path(scores.climatology_file), scores.climatology, experiment.variables.output, data.latitudes,
            data.longitudes, units,
        )  # fmt: skip
        return
    check_size(splits.training, allow_large=scores.allow_large)
    check_coverage(scores.climatology, splits.training.dates, splits.test.dates)


def _check_names(experiment: Experiment) -> None:
    """Check the names of outputs in the diagnostics and the scalers."""
    config, outputs = experiment.config, experiment.variables.output
    names = [("diagnostics.plot.parameters", name) for name in config.diagnostics.plot.named]
    names += [("diagnostics.log.variables", name) for name in config.diagnostics.log.named]
    for key, scaler in config.training.scalers.items():
        if isinstance(scaler, VariableScaler):
            names += [(f"training.scalers.{key}.weights", name) for name in scaler.weights_by_name]
    problems = [
        Problem(f"{name!r} is not an output of the model", key, ", ".join(outputs), did_you_mean(name, outputs))
        for key, name in names
        if name not in outputs
    ]
    if problems:
        raise UserError.collect(problems)
