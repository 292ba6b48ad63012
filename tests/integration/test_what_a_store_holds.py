"""Stores with NaNs, missing dates, ensemble members and diagnostic variables, from the command line on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import SMALL, curve, train, weights

from small_stores import lat_lon_grid, travelling_waves


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def small(store: Path, run_id: str, *options: str) -> list[str]:
    return [*SMALL, f"system.input.dataset={store}", f"training.run_id={run_id}", *options]


NANS = [(date, "rain", 7) for date in range(40)]


@pytest.mark.parametrize("workers", [0, 2])
def test_nans_with_an_imputer_train_and_count_for_nothing(make_store, folder: Path, workers: int):
    options = [f"dataloader.num_workers={{training: {workers}, validation: {workers}, test: {workers}}}"]
    assert train(*small(make_store(nan_at=NANS), "mean", "data.processors.imputer.mean=[rain]", *options)) == 0
    values = curve(folder / "mean")
    assert all(math.isfinite(value) for value in values)
    assert values[-1] < values[0]
    scores = json.loads((folder / "mean" / "metrics.json").read_text())
    assert "NaN" not in json.dumps(scores)


def test_the_loss_ignores_what_is_not_observed(make_store, folder: Path):
    """A point that is a NaN at every date has no part in the training, whatever fills it."""
    data = travelling_waves(40, 4, 1, lat_lon_grid())
    data[:, 3, :, :7] = np.nan  # output only, so that the filling is no input
    store = make_store(data=data)
    for run_id, filling in (("zero", 0.0), ("large", 1e4)):
        options = ["data.diagnostic=[rain]", f"+data.processors.imputer.constant.rain={filling}"]
        assert train(*small(store, run_id, *options)) == 0
    assert curve(folder / "zero") == curve(folder / "large")
    after = weights(folder / "large")
    for name, weight in weights(folder / "zero").items():
        if "imputer" not in name:
            assert torch.equal(weight, after[name]), name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_nan_without_an_imputer_is_named(make_store, folder: Path, workers: int, capfd):
    store = make_store(nan_at=[(17, "rain", 5)])
    options = [f"dataloader.num_workers.training={workers}"]
    assert train(*small(store, "faulty", *options)) == 2
    said = capfd.readouterr().err
    assert "variable 'rain' holds 5 NaNs at 2000-01-05T06:00:00 (training), and has no imputer" in said
    assert "data.processors.imputer.mean=[rain]" in said
    assert "Traceback" not in said
    assert said.count("error:") == 1


def test_windows_with_missing_dates_are_left_out(make_store, folder: Path, capsys):
    assert train(*small(make_store(missing=(10, 20)), "gaps")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "windows: 24 training" in said
    assert "left out for missing dates: 6 training windows" in said
    assert all(math.isfinite(value) for value in curve(folder / "gaps"))


def test_an_ensemble_trains(make_store, folder: Path):
    assert train(*small(make_store(members=2), "two")) == 0
    values = curve(folder / "two")
    assert values[-1] < 0.75 * values[0]
    assert "rain" in (folder / "two" / "metrics.json").read_text()


def test_members_are_samples_of_one_model(make_store, folder: Path):
    """Two equal members give the losses of one."""
    one = travelling_waves(40, 4, 1, lat_lon_grid())
    assert train(*small(make_store("one.zarr", data=one), "one", "training.precision=64-true")) == 0
    two = np.concatenate([one, one], axis=2)
    assert train(*small(make_store("two.zarr", data=two), "two", "training.precision=64-true")) == 0
    assert curve(folder / "two") == pytest.approx(curve(folder / "one"), rel=1e-6)


def test_a_diagnostic_variable_trains_is_scored_and_bounded(make_store, folder: Path):
    data = travelling_waves(40, 4, 1, lat_lon_grid())
    data[:, 3] = np.maximum(data[:, 3] - 40.0, 0.0)  # rain, zero at half of the points
    store = make_store(data=data)
    options = ["data.diagnostic=[rain]", "training.optimization.lr=1e-2", "diagnostics.scores.lead_times=2",
               "training.max_epochs=4"]  # fmt: skip
    assert train(*small(store, "free", *options)) == 0
    assert train(*small(store, "bounded", *options, "model.bounding=[{kind: relu, variables: [rain]}]")) == 0
    for run_id in ("free", "bounded"):
        values = curve(folder / run_id)
        assert values[-1] < 0.75 * values[0], run_id
        assert "rain" in (folder / run_id / "metrics.json").read_text()
    assert curve(folder / "free") != curve(folder / "bounded")
