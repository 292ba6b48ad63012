from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import etesian.data
from etesian.errors import UserError
from etesian.inference.climatology import fit_climatology
from etesian.inference.climatology_file import save_climatology
from etesian.inference.references import (
    CLIMATOLOGY,
    DAMPED_PERSISTENCE,
    PERSISTENCE,
    Persistence,
    fit_damped_persistence,
    fit_references,
)
from etesian.inference.scores import Scores
from etesian.schema.diagnostics import ScoresSettings

EMBEDDED = Path(etesian.data.__file__).parent / "embedded" / "ncep_t_sig995_monthly_5deg.nc"


@dataclass
class Fields:
    values: np.ndarray  # [T, V, E, G]
    dates: np.ndarray
    latitudes: np.ndarray
    longitudes: np.ndarray
    variables: tuple = ("t",)
    missing: set = field(default_factory=set)

    def __post_init__(self):
        self.shape = self.values.shape

    def __getitem__(self, index):
        return self.values[index]


def red_noise(factor, length=4000, points=4, members=1):
    """An AR(1) process of unit variance at each point, with a mean of each month."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(length, 1, members, points)) * np.sqrt(1 - factor**2)
    values = np.empty_like(noise)
    values[0] = rng.normal(size=noise.shape[1:])
    for index in range(1, length):
        values[index] = factor * values[index - 1] + noise[index]
    dates = np.datetime64("1900-01", "M") + np.arange(length)
    values += 10 * np.cos(2 * np.pi * np.arange(length) / 12)[:, None, None, None]
    return Fields(values.astype(np.float32), dates, np.zeros(points), np.arange(points, dtype=float))


def test_persistence_repeats_the_last_state():
    initial = np.arange(12.0).reshape(2, 1, 3, 2)
    forecast = Persistence().forecast(initial, 4)
    assert forecast.shape == (2, 4, 1, 3, 2)
    assert (forecast == initial[:, None]).all()


def test_the_damping_factor_is_the_autocorrelation_at_each_lead_time_and_point():
    factor = np.array([0.9, 0.5, 0.0, -0.4])
    series = red_noise(factor)
    damped = fit_damped_persistence(series, fit_climatology(series, "monthly"), [1, 3])
    np.testing.assert_allclose(damped.factor[:, 0], [factor, factor**3], atol=0.05)


def test_the_factor_is_the_least_squares_one_and_pairs_with_a_gap_are_left_out():
    series = red_noise(0.7, length=240, members=2)
    series.values[5, 0, 1, 0] = np.nan
    series.values[:, 0, :, 3] = np.nan
    series.missing = {17}
    climatology = fit_climatology(series, "monthly")
    damped = fit_damped_persistence(series, climatology, [2])
    anomaly = series.values[:, 0].astype(float) - climatology.at(series.dates)[..., 0]  # [T, E, G]
    anomaly[17] = np.nan
    before, after = anomaly[:-2, :, 0].ravel(), anomaly[2:, :, 0].ravel()
    both = np.isfinite(before) & np.isfinite(after)
    expected = np.linalg.lstsq(before[both][:, None], after[both], rcond=None)[0]
    assert damped.factor[0, 0, 0] == pytest.approx(expected[0], rel=1e-5)
    assert damped.factor[0, 0, 3] == 0.0


def test_a_damped_forecast_is_the_climatology_plus_the_damped_anomaly():
    series = red_noise(0.7)
    climatology = fit_climatology(series, "monthly")
    damped = fit_damped_persistence(series, climatology, [1, 2])
    initial = series.values[[4, 9]].transpose(0, 2, 3, 1)
    forecast = damped.forecast(initial, series.dates[[4, 9]], series.dates[[[5, 6], [10, 11]]])
    assert forecast.shape == (2, 2, 1, 4, 1)
    anomaly = initial[1, 0, :, 0] - climatology.mean[9, 0]
    np.testing.assert_allclose(
        forecast[1, 1, 0, :, 0], climatology.mean[11, 0] + damped.factor[1, 0] * anomaly, rtol=1e-5
    )


def test_lead_times_are_positive():
    series = red_noise(0.5, length=24)
    with pytest.raises(ValueError, match="at least one"):
        fit_damped_persistence(series, fit_climatology(series, "monthly"), [0])


def test_the_settings_choose_the_references(tmp_path):
    series = red_noise(0.5, length=48)
    assert fit_references(series, ScoresSettings(climatology="none"), ["t"]).names == (PERSISTENCE,)
    fitted = fit_references(series, ScoresSettings(lead_times=2), ["t"], step=3)
    assert fitted.names == (PERSISTENCE, DAMPED_PERSISTENCE, CLIMATOLOGY)
    assert fitted.damped.steps == (3, 6)
    forecasts = fitted.forecasts(series.values[:1].transpose(0, 2, 3, 1), series.dates[:1], series.dates[None, [3, 6]])
    assert {name: field.shape for name, field in forecasts.items()} == dict.fromkeys(fitted.names, (1, 2, 1, 4, 1))
    save_climatology(fitted.climatology, tmp_path / "c.nc")
    read = fit_references(series, ScoresSettings(climatology_file=str(tmp_path / "c.nc")), ["t"])
    np.testing.assert_array_equal(read.climatology.mean, fitted.climatology.mean)
    np.testing.assert_array_equal(
        read.damped.factor[0], fit_references(series, ScoresSettings(), ["t"]).damped.factor[0]
    )


def test_a_large_training_period_is_fitted_only_when_asked_for_but_a_file_is_read(tmp_path):
    series = red_noise(0.5, length=48)
    save_climatology(fit_climatology(series, "monthly"), tmp_path / "c.nc")
    series.shape = (10**10, 1, 1, 4)
    with pytest.raises(UserError, match="160 GB"):
        fit_references(series, ScoresSettings(), ["t"])
    settings = ScoresSettings(climatology_file=str(tmp_path / "c.nc"))
    assert fit_references(series, settings, ["t"]).names == (PERSISTENCE, CLIMATOLOGY)


@pytest.mark.parametrize(
    ("years", "expected"),
    [((2016, 2026), (3.142, 1.431, 1.738)), ((2006, 2015), (3.211, 1.326, 1.533))],
)
def test_the_references_on_the_embedded_data(years, expected):
    """One month ahead, fitted on 1948 to 2005, scored on every month of the years."""
    with xr.open_dataset(EMBEDDED) as dataset:
        latitudes, longitudes = np.meshgrid(dataset.latitude, dataset.longitude, indexing="ij")
        values = dataset["t_sig995"].values.reshape(len(dataset.time), 1, 1, -1).astype(np.float32)
        dates = dataset.time.values
    year = dates.astype("datetime64[Y]").astype(int) + 1970
    training = Fields(values[year <= 2005], dates[year <= 2005], latitudes.ravel(), longitudes.ravel())
    references = fit_references(training, ScoresSettings(), ["t"])
    targets = np.flatnonzero((year >= years[0]) & (year <= years[1]))
    scores = Scores(references.names, ["t"], ["1 month"], np.cos(np.deg2rad(training.latitudes)))
    for batch in np.array_split(targets, 4):
        initial = values[batch - 1].transpose(0, 2, 3, 1)
        forecasts = references.forecasts(initial, dates[batch - 1], dates[batch][:, None])
        scores.add(forecasts, values[batch].transpose(0, 2, 3, 1)[:, None])
    table = scores.table()
    assert table.forecasts == len(targets)
    np.testing.assert_allclose(table.rmse[:, 0, 0], expected, atol=0.0006)
