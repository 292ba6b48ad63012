from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from etesian.errors import UserError
from etesian.inference.climatology import (
    Climatology,
    check_coverage,
    check_size,
    fit_climatology,
    group_of,
)


@dataclass
class Series:
    """A dataset in memory: values [T, V, E, G]."""

    values: np.ndarray
    dates: np.ndarray
    variables: tuple = ("t", "u")
    missing: set = field(default_factory=set)

    def __post_init__(self):
        points = self.values.shape[3]
        self.latitudes, self.longitudes = np.linspace(80, -80, points), np.linspace(0, 300, points)
        self.shape, self.read = self.values.shape, []

    def __getitem__(self, index):
        assert isinstance(index, int)
        assert index not in self.missing
        self.read.append(index)
        return self.values[index]


def monthly(years=5, members=2, points=7, start="1990-01"):
    dates = np.arange(np.datetime64(start, "M"), np.datetime64(start, "M") + 12 * years)
    values = np.random.default_rng(0).normal(280, 5, (len(dates), 2, members, points)).astype(np.float32)
    return Series(values, dates.astype("datetime64[s]"))


def daily(start, end, points=3):
    dates = np.arange(np.datetime64(start), np.datetime64(end))
    values = np.random.default_rng(1).normal(0, 1, (len(dates), 2, 1, points)).astype(np.float32)
    return Series(values, dates.astype("datetime64[s]"))


def test_monthly_means_are_those_of_numpy_over_dates_and_members():
    series = monthly()
    climatology = fit_climatology(series, "monthly")
    march = series.values[2::12].mean(axis=(0, 2), dtype=np.float64)
    np.testing.assert_allclose(climatology.mean[2], march, rtol=1e-6)
    assert climatology.at(np.array(["2031-03-17T06"], "datetime64[s]")).shape == (1, 1, 7, 2)
    np.testing.assert_array_equal(climatology.at(np.datetime64("2031-03-17"))[0, 0], climatology.mean[2].T)
    assert climatology.period == ("1990-01-01T00:00:00", "1994-12-01T00:00:00")


def test_the_dataset_is_read_once_date_by_date_without_the_missing_dates():
    series = replace(monthly(), missing={3, 15})
    climatology = fit_climatology(series, "monthly", ["u"])
    assert series.read == [index for index in range(60) if index not in {3, 15}]
    april = series.values[[27, 39, 51], 1].mean(axis=(0, 1), dtype=np.float64)
    np.testing.assert_allclose(climatology.mean[3, 0], april, rtol=1e-6)
    assert climatology.variables == ("u",)


def test_nan_is_left_out_point_by_point():
    series = monthly()
    series.values[0, 0, 0, 1] = np.nan
    series.values[:, 1, :, 4] = np.nan
    climatology = fit_climatology(series, "monthly")
    january = np.nanmean(series.values[::12, 0].astype(np.float64), axis=(0, 1))
    np.testing.assert_allclose(climatology.mean[0, 0], january, rtol=1e-6)
    assert np.isnan(climatology.mean[:, 1, 4]).all()
    assert np.isnan(climatology.mean).sum() == 12


def test_day_of_the_year_counts_from_one_january_in_leap_years_too():
    dates = np.array(["2023-01-01", "2023-03-01", "2024-03-01", "2024-12-31T18"], "datetime64[s]")
    assert group_of("daily", dates).tolist() == [0, 59, 60, 365]
    assert group_of("monthly", np.array(["1948-01", "1969-12", "2026-02"], "datetime64[M]")).tolist() == [0, 11, 1]


def test_daily_means_weigh_every_date_within_the_window_alike_across_new_year():
    series = daily("2000-01-01", "2005-01-01")  # two leap years
    climatology = fit_climatology(series, "daily", window=5)
    near = np.isin(group_of("daily", series.dates), [364, 365, 0, 1, 2])
    np.testing.assert_allclose(
        climatology.mean[0], series.values[near].mean(axis=(0, 2), dtype=np.float64), rtol=1e-4, atol=1e-6
    )
    unsmoothed = fit_climatology(series, "daily", window=1)
    np.testing.assert_allclose(unsmoothed.mean[365], series.values[[365, 1826]].mean(axis=(0, 2)), rtol=1e-5, atol=1e-6)


def test_the_documented_damping_of_an_annual_cycle():
    series = daily("2001-01-01", "2005-01-01")
    days = (series.dates - series.dates[0]) / np.timedelta64(1, "D")
    series.values[:] = np.cos(2 * np.pi * days / 365.25)[:, None, None, None]
    amplitude = np.ptp(fit_climatology(series, "daily", window=31).mean[:365, 0, 0]) / 2
    assert amplitude == pytest.approx(0.988, abs=0.001)


@pytest.mark.parametrize("window", [0, 4])
def test_a_window_is_an_odd_number_of_days(window):
    with pytest.raises(ValueError, match="odd"):
        fit_climatology(daily("2000-01-01", "2000-02-01"), "daily", window=window)


def test_a_date_the_training_period_never_saw_is_an_error_that_names_it():
    series = monthly(years=1)
    series = Series(series.values[:6], series.dates[:6])
    climatology = fit_climatology(series, "monthly")
    climatology.at(series.dates)
    with pytest.raises(UserError, match="July, December") as caught:
        climatology.at(np.array(["2000-12", "2000-07", "2001-07"], "datetime64[M]"))
    assert caught.value.problems[0].where == "diagnostics.scores.climatology"
    with pytest.raises(UserError, match="July"):
        check_coverage("monthly", series.dates, ["2000-07-01"])
    check_coverage("daily", ["2000-01-10"], ["2000-01-25"])
    with pytest.raises(UserError, match="day 26"):
        check_coverage("daily", ["2000-01-10"], ["2000-01-26"])


def test_a_training_period_over_20_gb_is_read_only_when_asked_for():
    series = monthly()
    series.shape = (60, 2, 2, 10**8)
    with pytest.raises(UserError, match="96 GB") as caught:
        fit_climatology(series, "monthly")
    assert "diagnostics.scores.allow_large=true" in caught.value.problems[0].mend
    assert series.read == []
    check_size(series, allow_large=True)


def test_unknown_variables_and_unreadable_periods_are_errors():
    with pytest.raises(UserError, match="no variable 'T'") as caught:
        fit_climatology(monthly(), "monthly", ["T"])
    assert caught.value.problems[0].mend == "did you mean 't'?"
    with pytest.raises(UserError, match="no date that can be read"):
        fit_climatology(replace(monthly(), missing=set(range(60))), "monthly")


def test_select_orders_the_variables_and_shapes_are_checked():
    climatology = fit_climatology(monthly(), "monthly")
    turned = climatology.select(["u", "t"])
    np.testing.assert_array_equal(turned.mean, climatology.mean[:, ::-1])
    with pytest.raises(ValueError, match="needs means"):
        Climatology(
            "daily", climatology.mean, climatology.covered, ("t", "u"),
            climatology.latitudes, climatology.longitudes, 1, ("", ""),
        )  # fmt: skip
