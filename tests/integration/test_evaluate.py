"""The command ``evaluate`` on small runs: the scores are those of the run's end, and mistakes stop it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from matplotlib.image import imread
from runs import SMALL, environment, run, train

from etesian import cli
from small_stores import write_store

UNITS = {"t": {"units": "K"}, "u": {"units": "m s**-1"}}
OPTIONS = [*SMALL, "training.run_id=first", "training.max_epochs=1", "diagnostics.scores.lead_times=2",
           "diagnostics.scores.climatology=monthly"]  # fmt: skip
MEASURED = ("model", "persistence", "damped_persistence", "climatology")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run ``first`` on ``weather.zarr``."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_store(folder / "weather.zarr", metadata=UNITS, dates=60)
    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(folder)
        patches.setenv("ETESIAN_CACHE", str(folder / "cache"))
        assert train(*OPTIONS, f"system.input.dataset={folder / 'weather.zarr'}") == 0
    return folder


@pytest.fixture
def here(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(finished)
    monkeypatch.setenv("ETESIAN_CACHE", str(finished / "cache"))
    return finished


def scores_of(folder: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with open(folder / "scores.csv", newline="") as file:
        return {(row["variable"], row["lead_time"], row["source"]): row for row in csv.DictReader(file)}


def test_the_scores_are_those_of_the_end_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("outputs/first/evaluation", ignore_errors=True)
    assert cli.main(["evaluate", "first", "--variables", "t"]) == 0
    printed = capsys.readouterr().out
    assert "RMSE, 2000-01-14 to 2000-01-15" in printed
    output = Path("outputs/first/evaluation")
    found = scores_of(output)
    told = json.loads(Path("outputs/first/metrics.json").read_text())
    for variable, entry in told["variables"].items():
        for lead, sources in entry["lead_times"].items():
            for source in MEASURED:
                row = found[variable, lead, source]
                for measure, value in sources[source].items():
                    expected = None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)
                    assert (float(row[measure]) if row[measure] else None) == expected
                assert int(row["forecasts"]) == told["forecasts"]
    names = {file.name for file in output.iterdir()}
    assert {"scores.csv", "scores.nc", "maps.nc", "scores.png", "errors_t.png", "forecast_t_6h.png"} <= names
    assert imread(output / "scores.png").std() > 0
    with xr.open_dataset(output / "scores.nc", decode_timedelta=False) as file:
        assert file.lead_time.values.tolist() == [6.0, 12.0]
        assert file.attrs["run"] == "run first"


def test_a_folder_without_pickle_other_dates_and_no_climatology(here: Path, tmp_path: Path) -> None:
    arguments = [
        "outputs/first/checkpoints/inference-last", "--dataset", "weather.zarr", "--start", "2000-01-02",
        "--end", "2000-01-05", "--lead-time", "18h", "--every", "3", "--climatology", "none", "--variables", "u",
        "--no-plots", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    assert cli.main(["evaluate", *arguments]) == 0
    found = scores_of(tmp_path / "out")
    assert {key[2] for key in found} == {"model", "persistence"}
    assert {key[1] for key in found} == {"6 h", "12 h", "18 h"}
    assert found["t", "18 h", "model"]["forecasts"] == "5"  # 16 dates, 14 windows
    assert found["t", "18 h", "model"]["acc"] == ""
    assert not list((tmp_path / "out").glob("*.png"))
    (tmp_path / "out" / "errors_t.png").touch()  # of another evaluation
    assert cli.main(["evaluate", *arguments, "--force"]) == 0
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frist"], "did you mean 'first'?"),
        (["outputs/frist.ckpt"], "outputs/frist.ckpt does not exist"),
        (["first", "--start", "1999"], "start 1999 lies before the data"),
        (["first", "--end", "2000-01-40"], "'2000-01-40' is not a date"),
        (["first", "--lead-time", "7h"], "--lead-time 7h is no multiple of the model's step of 6h"),
        (["first", "--lead-time", "0"], "--lead-time 0 is no step"),
        (["first", "--lead-time", "50"], "--lead-time"),
        (["first", "--every", "0"], "--every 0 is not 1 or more"),
        (["first", "--variables", "tt"], "'tt' is not an output of the model"),
        (["first", "--dataset", "nowhere.zarr"], "there is no dataset at 'nowhere.zarr'"),
        (["first", "--climatology", "none", "--climatology-file", "x.nc"], "--climatology-file is given"),
        (["first", "-o", "weather.zarr"], "weather.zarr is there already"),
        (["first", "-o", "weather.zarr", "--force"], "weather.zarr holds no evaluation, so it is not replaced"),
    ],
)
def test_mistakes_stop_it(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, tmp_path: Path
) -> None:
    output = [] if "-o" in arguments else ["-o", str(tmp_path / "out")]
    assert cli.main(["evaluate", *arguments, *output]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "dataloader.test" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"t": {"units": "degC"}}}, "t is in 'degC' in the dataset, and was in 'K' in training"),
        ({"variables": ("t", "forcing", "rain")}, "the dataset lacks u, which the model reads or is scored by"),
        ({"dates": "hourly"}, "the dates are 4h apart, and one step of the model is 6h"),
        ({"grid": "shifted"}, "are not those of the model, or in another order"),
    ],
)
def test_data_that_do_not_fit(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
    import numpy as np

    from small_stores import lat_lon_grid

    if "dates" in options:
        dates = np.datetime64("2000-01-01", "s") + np.arange(40) * np.timedelta64(4, "h")
        options = {"dates": dates, "frequency": "4h"}
    if "grid" in options:
        latitudes, longitudes = lat_lon_grid()
        options = {"grid": (latitudes, longitudes + 1.0)}
    write_store(tmp_path / "other.zarr", **options)
    arguments = ["evaluate", "first", "--dataset", str(tmp_path / "other.zarr"), "-o", str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_embedded_data(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    quiet = ["diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false", "training.run_id=tiny"]
    run(tmp_path, cache, "--config-name", "debug", *quiet)
    arguments = ["tiny", "--lead-time", "2mo", "--start", "2020-01", "--end", "2020-06"]
    done = run(tmp_path, cache, *arguments, name="evaluate")
    assert "RMSE, 2020-01 to 2020-06" in done.stdout
    with xr.open_dataset(tmp_path / "outputs/tiny/evaluation/spectra.nc") as found:
        assert found.sizes["wavenumber"] == 18
        power = found.t_sig995_power.sum("wavenumber").sel(spectrum="truth").values
    assert (abs(power**0.5 - 288) < 3).all()  # the mean square of the Earth's temperature near the surface
    assert environment(cache)["ETESIAN_CACHE"] == str(cache)
