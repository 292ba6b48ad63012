"""What a run ends with: the table of scores over the test period, ``metrics.json`` and the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from etesian.data.description import units_of
from etesian.data.windows import WindowDataset
from etesian.files import write_json
from etesian.inference.evaluation import at_least_float32, score_batches
from etesian.inference.references import fit_references
from etesian.inference.score_table import lead_labels, scores_table, scores_to_json
from etesian.inference.scores import MODEL, Scores, ScoreTable
from etesian.kernels.failures import naming_kernels
from etesian.plots.curves import plot_losses, plot_scores, read_history
from etesian.plots.maps import MapFields, make_frame, plot_maps
from etesian.training.experiment import Experiment
from etesian.training.fit import Trained
from etesian.training.processes import together
from etesian.training.run_folder import RunFolder
from etesian.training.tracking.open import log_results


def finish(experiment: Experiment, run: RunFolder, trained: Trained) -> ScoreTable | None:
    """Score the test period, print and write the scores, draw the pictures, say where everything is.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    run : RunFolder
        Where it is written.
    trained : Trained
        What :func:`etesian.training.fit.train` returns.

    Returns
    -------
    ScoreTable or None
        None where ``diagnostics.scores.enabled`` is false.
    """
    diagnostics, console = experiment.config.diagnostics, Console()
    with together(trained.trainer, last=True), naming_kernels(experiment.kernels):
        trained.forecaster.to(trained.device)
        table = score_test_period(experiment, trained) if diagnostics.scores.enabled else None
        draws = diagnostics.plot.enabled and (trained.trainer.is_global_zero or trained.shared is not None)
        sample = _sample(experiment, trained) if draws else None
        if trained.trainer.is_global_zero:
            if table is not None:
                write_json(run.path / "metrics.json", scores_to_json(table))
                console.print()
                console.print(scores_table(table, title=f"RMSE over the test period, {_period(experiment)}"))
            if sample is not None:
                draw(experiment, run, trained, table, sample)
            log_results(trained.trainer.loggers, run.path)
            console.print(f"Run {run.run_id}: {run.path} (weights of {trained.checkpoint.name})", highlight=False)
        trained.trainer.strategy.barrier("report")
    return table


def score_test_period(experiment: Experiment, trained: Trained) -> ScoreTable:
    """Score the model and its references over every window of the test split.

    Each process scores its slice of the batches; the sums are added up, so every process returns the same table.
    """
    config, variables = experiment.config, experiment.variables
    leads = config.diagnostics.scores.lead_times
    units = units_of(experiment.splits.training)
    references = fit_references(
        experiment.splits.training, config.diagnostics.scores, variables.output, step=experiment.step, units=units
    )
    trainer = trained.trainer
    loader = trained.datamodule.loader("test", leads, *trained.datamodule.place(), shuffle=False)
    windows = loader.dataset
    assert isinstance(windows, WindowDataset)
    scores = Scores(
        (MODEL, *references.names),
        variables.output,
        lead_labels(experiment.splits.test.dates, experiment.step, leads),
        trained.graph["data"].area_weight.flatten(),
        units,
    )
    first = config.task.multistep_input
    score_batches(loader, windows.dates, partial(states, trained, leads=leads), variables, first, references, scores)
    sums = scores.packed().to(trained.device)
    if trained.shared is not None and not trained.shared.counts_scores:
        sums.zero_()
    packed = trainer.strategy.reduce(sums, reduce_op="sum")
    assert isinstance(packed, Tensor)
    scores.load(packed.cpu())
    return scores.table()


def states(trained: Trained, x: Tensor, leads: int) -> Iterator[Tensor]:
    """Roll the trained model out from windows x [B, T, E, G, V]: [B, E, G, V_out], one by one, on its device.

    Processes that share a model do it together, and each returns the whole states.
    """
    parameter = next(trained.forecaster.parameters())
    own = x if trained.shared is None else trained.shared.own_points(x)
    rolled = trained.forecaster.states(own.to(parameter.device, parameter.dtype), leads)
    found = at_least_float32(rolled, trained.trainer.precision_plugin.forward_context)
    return found if trained.shared is None else trained.shared.whole(found)


@dataclass(frozen=True)
class _Sample:
    """One window of the test split and its forecast: dates (L,), fields [L, G, V_out] of the first member."""

    dates: np.ndarray
    truth: np.ndarray
    forecast: np.ndarray
    initial: np.ndarray


def draw(experiment: Experiment, run: RunFolder, trained: Trained, table: ScoreTable | None, sample: _Sample) -> None:
    """Draw the loss curves, the scores by lead time, and maps of one sample for each variable and lead time."""
    plot, outputs = experiment.config.diagnostics.plot, experiment.variables.output
    names = plot.drawn(outputs)
    if plot.parameters is None and len(names) < len(outputs):
        chosen = "diagnostics.plot.parameters=[...] chooses others, =all draws every one"
        print(f"Pictures show the first {len(names)} of {len(outputs)} outputs; {chosen}", flush=True)
    plot_losses(read_history(run.path / "metrics.csv"), run.plots / "loss.png")
    if table is not None:
        plot_scores(table, run.plots / "rmse.png", names)
    data = experiment.splits.test
    frame = make_frame(data.latitudes, data.longitudes, plot.coastlines)
    weights = trained.graph["data"].area_weight.flatten().numpy()
    labels = lead_labels(data.dates, experiment.step, len(sample.dates))
    for name in names:
        variable = outputs.index(name)
        for lead, label in enumerate(labels):
            fields = MapFields(
                variable=name,
                units=units_of(experiment.splits.training).get(name, ""),
                lead_time=label,
                valid_date=sample.dates[lead],
                latitudes=data.latitudes,
                longitudes=data.longitudes,
                weights=weights,
                truth=sample.truth[lead, :, variable],
                forecast=sample.forecast[lead, :, variable],
                persistence=sample.initial[:, variable],
            )
            plot_maps(fields, run.plots / f"map_{name}_{label.replace(' ', '')}.png", frame)


def _sample(experiment: Experiment, trained: Trained) -> _Sample:
    config, variables = experiment.config, experiment.variables
    scores, first = config.diagnostics.scores, config.task.multistep_input
    leads = scores.lead_times if scores.enabled else 1
    windows = trained.datamodule.windows("test", leads)
    x = windows[config.diagnostics.plot.sample_idx]["x"][None]  # [1, T, E, G, V]
    dates = windows.dates(config.diagnostics.plot.sample_idx)[first:]
    if labels_are_months(experiment):
        dates = dates.astype("datetime64[M]")
    outputs = x[0, :, 0][..., variables.data_output].numpy()  # [T, G, V_out]
    rolled = torch.stack([state[0, 0].cpu() for state in states(trained, x, leads)]).numpy()  # [L, G, V_out]
    return _Sample(dates, outputs[first:], rolled, outputs[first - 1])


def labels_are_months(experiment: Experiment) -> bool:
    """Tell whether the dates stand for calendar months."""
    return "month" in lead_labels(experiment.splits.test.dates, experiment.step, 1)[0]


def _period(experiment: Experiment) -> str:
    unit = "M" if labels_are_months(experiment) else "D"
    first, last = (date.astype(f"datetime64[{unit}]") for date in experiment.forecast_period("test"))
    return f"{first} to {last}"
