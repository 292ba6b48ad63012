"""A run's checkpoint for inference in the hands of anemoi-inference itself, and of the command ``forecast``."""

from __future__ import annotations

from pathlib import Path

import inference_site
import numpy as np
import pytest
import torch
import xarray as xr
from anemoi.datasets import open_dataset
from doc_pages import named_files
from numpy.typing import NDArray
from runs import train

from etesian import cli
from etesian.inference import load
from etesian.inference.forecaster import Forecaster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DATE = "2000-01-10T06:00:00"
STEPS = 20

VARIABLES = [
    "t_850",
    "tp",
    "z_500",
    "insolation",
    "q_700",
    "cos_latitude",
    "sin_latitude",
    "2t",
    "cos_longitude",
    "sin_longitude",
    "cos_julian_day",
    "sin_julian_day",
    "cos_local_time",
    "sin_local_time",
    "lsm",
]
"""Roles mixed, so that a wrong order of any index shows."""

OPTIONS = [
    "--config-name", "own_data", "graph.nodes.hidden.resolution=1", "model.num_channels=16",
    "model.encoder.num_heads=2", "model.processor.num_heads=2", "model.decoder.num_heads=2",
    "model.processor.num_layers=1", "training.max_steps=20", "training.optimization.lr_scheduler.warmup_t=2",
    "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false", "data.forcing=computed",
    "data.diagnostic=[tp]", "training.run_id=run", "model.bounding=[{kind: relu, variables: [tp]}]",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a 6-hourly store, a run trained on it, and the forecast that anemoi-inference made of it."""
    folder = tmp_path_factory.mktemp("inference")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        store = ["--grid", "regular-5deg", "--dates", "80", "--variables", *VARIABLES]
        assert cli.main(["dataset", "make", "synthetic", "weather.zarr", *store]) == 0
        assert train(*OPTIONS, "system.input.dataset=weather.zarr") == 0
    shown = named_files("docs/inference.md")["forecast.yaml"]
    assert f"date: {DATE}\nlead_time: {6 * STEPS}h" in shown
    printed = shown.replace("{netcdf: forecast.nc}", "{tee: {outputs: [printer, {netcdf: theirs.nc}]}}")
    (folder / "run.yaml").write_text(printed.replace("outputs/first", "outputs/run"))
    done = inference_site.run(folder / "run.yaml")
    assert "t_850 shape=(2592,)" in done.stdout + done.stderr  # the printer
    return folder


def rolled_out(forecaster: Forecaster, folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the rollout over the fields of the store, (steps, G) by variable."""
    names, first = forecaster.variables, forecaster.multistep_input
    dataset = open_dataset(str(folder / "weather.zarr"), select=list(names.names))
    start = int(np.flatnonzero(dataset.dates == np.datetime64(DATE))[0])
    states = torch.as_tensor(np.asarray(dataset[start - first + 1 : start + STEPS]))
    values = forecaster.rollout(states.permute(0, 2, 3, 1)[None], STEPS)[0, :, 0].numpy()
    return {name: values[..., column] for column, name in enumerate(names.output)}


def assert_same(theirs: dict[str, NDArray[np.float32]], ours: dict[str, NDArray[np.float32]]) -> None:
    """Compare to the rounding of 20 steps, the first of them to that of one."""
    assert set(ours) <= set(theirs)
    for name, values in ours.items():
        apart = np.abs(theirs[name] - values).max(axis=1) / values.std()
        assert apart[0] < 1e-5, (name, apart)
        assert apart.max() < 1e-4, (name, apart)


def their_forecast(folder: Path) -> dict[str, NDArray[np.float32]]:
    with xr.open_dataset(folder / "theirs.nc") as dataset:
        assert dataset.sizes["time"] == STEPS + 1  # the initial state too
        return {str(name): field.values[1:] for name, field in dataset.data_vars.items()}


def test_anemoi_inference_forecasts_what_the_rollout_does(folder: Path) -> None:
    forecaster = torch.load(folder / "outputs/run/checkpoints/inference-last.ckpt", weights_only=False)
    assert forecaster.multistep_input == 2
    assert forecaster.variables.diagnostic == ("tp",)
    ours = rolled_out(forecaster, folder)
    assert all(np.abs(values[-1] - values[0]).max() > 1e-3 * values.std() for values in ours.values())  # it moves
    assert_same(their_forecast(folder), ours)


def test_the_folder_without_pickle_forecasts_the_same(folder: Path) -> None:
    forecaster = torch.load(folder / "outputs/run/checkpoints/inference-last.ckpt", weights_only=False)
    ours = rolled_out(forecaster, folder)
    for name, values in rolled_out(load(folder / "outputs/run/checkpoints/inference-last"), folder).items():
        np.testing.assert_array_equal(values, ours[name])


@pytest.mark.parametrize("checkpoint", ["last.ckpt", "inference-last.ckpt", "inference-last"])
def test_the_command_forecasts_the_same(folder: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    options = ["--date", DATE, "--lead-time", "120h", "--output", "ours.nc", "--force"]
    assert cli.main(["forecast", f"outputs/run/checkpoints/{checkpoint}", *options]) == 0
    with xr.open_dataset("ours.nc") as dataset:
        ours = {str(name): field.values.reshape(STEPS, -1) for name, field in dataset.data_vars.items()}
    assert_same(their_forecast(folder), ours)
    assert set(ours) == {"t_850", "tp", "z_500", "q_700", "2t"}


def test_an_export_of_another_checkpoint_runs_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["checkpoint", "export", "outputs/run/checkpoints/last.ckpt", "-o", "exported.ckpt"]) == 0
    config = (folder / "run.yaml").read_text().replace("outputs/run/checkpoints/inference-last.ckpt", "exported.ckpt")
    (folder / "exported.yaml").write_text(config.replace("theirs.nc", "exported.nc").replace("120h", "12h"))
    inference_site.run(folder / "exported.yaml")
    with xr.open_dataset("exported.nc") as dataset, xr.open_dataset("theirs.nc") as whole:
        for name in dataset.data_vars:
            np.testing.assert_array_equal(dataset[name].values, whole[name].values[:3])


def test_a_run_that_was_done_writes_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    checkpoints = folder / "outputs/run/checkpoints"
    kept = torch.load(checkpoints / "inference-last.ckpt", weights_only=False).state_dict()
    (checkpoints / "inference-last.ckpt").rename(folder / "kept.ckpt")
    assert train(*OPTIONS, "system.input.dataset=weather.zarr") == 0
    again = torch.load(checkpoints / "inference-last.ckpt", weights_only=False)
    assert all(torch.equal(value, kept[name]) for name, value in again.state_dict().items())
    assert again.about["exported"]["step"] == 20
