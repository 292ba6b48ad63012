"""The work of ``evaluate``: open, forecast and score, write, draw."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etesian.checkpoint.export import stored_config, uncompiled
from etesian.checkpoint.open import open_forecaster
from etesian.data.description import step_of, units_of
from etesian.data.gridded import GriddedDataset
from etesian.data.sampler import GlobalBatchSampler
from etesian.data.threads import ThreadLoader
from etesian.data.windows import WindowDataset
from etesian.errors import UserError
from etesian.graph.area import area_weights
from etesian.graph.nodes import to_xyz
from etesian.inference.evaluation import FieldErrors, FirstForecast, Observer, at_least_float32, score_batches
from etesian.inference.evaluation_data import Period, in_options, open_period, open_references, training_dates
from etesian.inference.forecast import steps_in
from etesian.inference.forecaster import Forecaster
from etesian.inference.references import ReferenceSet
from etesian.inference.score_files import About, write_csv, write_maps, write_scores, write_spectra
from etesian.inference.score_table import lead_labels
from etesian.inference.scores import MODEL, Scores, ScoreTable
from etesian.inference.spectra import NoRows, RowTransform, Spectra
from etesian.plots.error_maps import plot_error_maps
from etesian.plots.maps import MapFields, make_frame, plot_maps
from etesian.plots.measures import plot_measures
from etesian.plots.spectra import plot_spectra
from etesian.runtime.device import get_device
from etesian.schema.config import Config

MAPPED = 3
"""Lead times that maps and spectra are made of, at most: the first, the middle, the last."""


@dataclass(frozen=True)
class Plan:
    """Everything opened and checked, before the first forecast."""

    forecaster: Forecaster
    config: Config
    windows: WindowDataset
    stride: int
    leads: int
    references: ReferenceSet
    batch_size: int
    device: torch.device


@dataclass(frozen=True)
class Evaluation:
    """What came out; maps, spectra and the first forecast of the shown variables only."""

    plan: Plan
    scores: ScoreTable
    shown: tuple[str, ...]
    errors: FieldErrors
    first: FirstForecast
    spectra: Spectra | None
    no_spectra: str
    weights: np.ndarray
    period: str
    trained_on: int

    @property
    def climatology(self) -> str:
        """The climatology in words."""
        climatology = self.plan.references.climatology
        if climatology is None:
            return "none"
        first, last = (date[:10] for date in climatology.period)
        smoothed = f", running mean of {climatology.window} days" if climatology.kind == "daily" else ""
        return f"{climatology.kind} means of {first} to {last}{smoothed}"

    def rows(self, most: int) -> list[int]:
        """Return so many lead times at most, evenly spread, the first and last among them."""
        return spread(self.plan.leads, most)


def spread(count: int, most: int) -> list[int]:
    """Return so many positions of `count` at most, evenly spread, the first and last among them."""
    return sorted({round(float(position)) for position in np.linspace(0, count - 1, min(count, most))})


def plan(args: argparse.Namespace, checkpoint: Path, period: Period, cache_dir: Path) -> Plan:
    """Open the checkpoint, the data and the references.

    Raises
    ------
    UserError
        For whatever does not fit; see :mod:`etesian.inference.evaluation_data`.
    """
    device = get_device(args.device)
    forecaster = open_forecaster(checkpoint)
    about = forecaster.about
    config = stored_config(checkpoint, uncompiled(about["config"]))
    given = {"climatology": args.climatology, "climatology_file": args.climatology_file}
    settings = config.diagnostics.scores.model_copy(
        update={name: value for name, value in given.items() if value is not None}
        | ({"allow_large": True} if args.allow_large else {})
        | {"lead_times": _leads(args.lead_time, forecaster, config)}
    )
    if args.climatology_file and settings.climatology == "none":
        raise UserError("--climatology-file is given, and --climatology is none", where="--climatology")
    dataset, stride = open_period(forecaster, config, period, cache_dir)
    imputer = config.data.processors.imputer
    try:
        windows = WindowDataset(
            dataset, forecaster.multistep_input, settings.lead_times, stride, {*imputer.mean, *imputer.constant}, "test"
        )
    except UserError as error:
        raise in_options(error) from error
    windows.starts = windows.starts[:: args.every]
    references = open_references(config, settings, forecaster, dataset.dates, stride, cache_dir)
    batches = -(-len(windows) // (args.batch_size or config.dataloader.batch_size.test))
    size = -(-len(windows) // batches)  # as even as can be, so that the last one is hardly padded
    return Plan(forecaster.to(device), config, windows, stride, settings.lead_times, references, size, device)


def _leads(text: str | None, forecaster: Forecaster, config: Config) -> int:
    if text is None:
        return config.diagnostics.scores.lead_times
    if not (text.isascii() and text.isdecimal()):
        return steps_in(text, step_of(forecaster.about["dataset"]))
    if int(text) < 1:
        raise UserError(f"--lead-time {text} is no step", where="--lead-time", allowed="1, 2, 3, ... or 120h, 5d, 6mo")
    return int(text)


def evaluate(plan: Plan, shown: tuple[str, ...]) -> Evaluation:
    """Forecast from every initial date, and score."""
    dataset, variables, windows = plan.windows.dataset, plan.forecaster.variables, plan.windows
    places = {name: value.numpy() for name, value in plan.forecaster.about["coordinates"].items()}
    latlon = np.deg2rad(np.stack([places["latitudes"], places["longitudes"]], axis=1))
    weights = area_weights(to_xyz(latlon))[:, 0]
    labels = lead_labels(dataset.dates, plan.stride, plan.leads)
    scores = Scores((MODEL, *plan.references.names), variables.output, labels, weights, units_of(dataset))
    mapped, columns = spread(plan.leads, MAPPED), [variables.output.index(name) for name in shown]
    errors, first = FieldErrors(mapped, columns, len(weights)), FirstForecast(mapped, columns)
    spectra, no_spectra = None, ""
    try:
        spectra = Spectra(RowTransform(places["latitudes"], places["longitudes"]), mapped, columns)
    except NoRows as reason:
        no_spectra = str(reason)
    observers: list[Observer] = [errors, first, *([spectra] if spectra else [])]
    order = GlobalBatchSampler(len(windows), plan.batch_size, 0, 1, seed=0, shuffle=False, pad=True)
    loader = ThreadLoader(windows, order, 1, 1)
    first_input = plan.forecaster.multistep_input
    score_batches(
        loader, windows.dates, lambda x: _states(plan, x), variables, first_input, plan.references, scores, observers
    )  # fmt: skip
    valid = np.unique(np.concatenate([windows.dates(number)[first_input:] for number in range(len(windows))]))
    return Evaluation(
        plan, scores.table(), shown, errors, first, spectra, no_spectra, weights,
        f"{_day(valid[0], labels)} to {_day(valid[-1], labels)}", training_dates(plan.forecaster, valid),
    )  # fmt: skip


def _states(plan: Plan, x: Tensor) -> Iterator[Tensor]:
    """Roll out windows in the precision of the training."""
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(plan.config.training.precision)

    def context() -> Any:
        return nullcontext() if dtype is None else torch.autocast(plan.device.type, dtype)

    return at_least_float32(plan.forecaster.states(x.to(plan.device), plan.leads), context)


def _day(date: np.datetime64, labels: tuple[str, ...]) -> str:
    return str(date.astype(f"datetime64[{'M' if 'month' in labels[0] else 'D'}]"))


FILES = ("scores.*", "maps.nc", "spectra.*", "errors_*.png", "forecast_*.png")
"""Patterns of all the files of an evaluation."""


def write(evaluation: Evaluation, output: Path, attributes: dict[str, Any]) -> list[Path]:
    """Write CSV and NetCDF into a folder; return the files."""
    dataset = evaluation.plan.windows.dataset
    step = step_of(evaluation.plan.forecaster.about["dataset"])
    about = About(step, dataset.variables_metadata, attributes)
    write_csv(evaluation.scores, output / "scores.csv")
    write_scores(evaluation.scores, about, output / "scores.nc")
    write_maps(evaluation.errors, evaluation.shown, dataset.latitudes, dataset.longitudes, about, output / "maps.nc")
    files = [output / name for name in ("scores.csv", "scores.nc", "maps.nc")]
    if evaluation.spectra is not None:
        write_spectra(evaluation.spectra, evaluation.shown, about, output / "spectra.nc")
        files.append(output / "spectra.nc")
    return files


def draw(evaluation: Evaluation, output: Path) -> list[Path]:
    """Draw scores by lead time, maps and spectra of the shown variables; return the files."""
    table, shown, dataset = evaluation.scores, evaluation.shown, evaluation.plan.windows.dataset
    files = [plot_measures(table, output / "scores.png", shown, evaluation.period)]
    labels = [table.lead_times[lead] for lead in evaluation.errors.leads]
    if evaluation.spectra is not None:
        files.append(plot_spectra(evaluation.spectra, shown, labels, table.units, output / "spectra.png"))
    frame = make_frame(dataset.latitudes, dataset.longitudes, evaluation.plan.config.diagnostics.plot.coastlines)
    bias, rmse = evaluation.errors.bias, evaluation.errors.rmse
    for column, name in enumerate(shown):
        units = table.units.get(name, "")
        path = output / f"errors_{name}.png"
        files.append(plot_error_maps(name, units, labels, bias[:, column], rmse[:, column], evaluation.weights, frame,
                                     path))  # fmt: skip
        for lead, label in zip(evaluation.first.leads, labels, strict=True):
            path = output / f"forecast_{name}_{label.replace(' ', '')}.png"
            files.append(_draw_first(evaluation, dataset, name, lead, label, frame, path))
    return files


def _draw_first(
    evaluation: Evaluation, dataset: GriddedDataset, name: str, lead: int, label: str, frame: Any, path: Path
) -> Path:
    first, column = evaluation.first, evaluation.shown.index(name)
    date = first.dates[lead].astype("datetime64[M]") if "month" in label else first.dates[lead]
    fields = MapFields(
        variable=name, units=evaluation.scores.units.get(name, ""), lead_time=label, valid_date=date,
        latitudes=dataset.latitudes, longitudes=dataset.longitudes, weights=evaluation.weights,
        truth=first.truth[lead][column], forecast=first.forecast[lead][column], persistence=first.initial[lead][column],
    )  # fmt: skip
    return plot_maps(fields, path, frame)
