from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from etesian.plots import style
from etesian.plots.maps import MapFields, _error_range, area_rmse, colour_range, format_date, plot_maps, symmetric_range


def fields(points=800):
    steps = np.arange(points) + 0.5
    latitudes = np.rad2deg(np.arcsin(1 - 2 * steps / points))
    longitudes = np.rad2deg(np.pi * (1 + 5**0.5) * steps) % 360
    truth = 280 + 20 * np.cos(np.deg2rad(latitudes))
    return MapFields(
        "2t", "K", "6 h", np.datetime64("2020-01-01T06"), latitudes, longitudes, np.ones(points),
        truth, truth + 1.0, truth - 3.0,
    )  # fmt: skip


def test_a_picture_is_written_and_replaced_and_nothing_else_is_left(tmp_path):
    path = plot_maps(fields(), tmp_path / "plots" / "2t.png")
    first = imread(path)
    assert first.shape[0] > 500
    assert first.shape[1] > 1000
    other = fields()
    plot_maps(replace(other, forecast=other.truth - 5.0), path)
    assert not np.array_equal(imread(path), first)
    assert [entry.name for entry in path.parent.iterdir()] == ["2t.png"]


def test_gaps_and_constant_fields_are_drawn(tmp_path):
    truth = np.full(800, np.nan)
    truth[:300] = 5.0
    plot_maps(replace(fields(), truth=truth, forecast=truth, persistence=truth, units=""), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match="forecast"):
        replace(fields(), forecast=np.zeros(3))
    with pytest.raises(ValueError, match="no value to draw"):
        replace(fields(), truth=np.full(800, np.nan))
    with pytest.raises(ValueError, match=r"\.png"):
        plot_maps(fields(), tmp_path / "p.jpg")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_picture_alone(tmp_path, monkeypatch):
    (tmp_path / "p.png").write_text("old")
    with style.figure(1, 1) as drawing:
        monkeypatch.setattr(drawing, "savefig", lambda *_args, **_options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            style.save(drawing, tmp_path / "p.png")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("p.png", "old")]


def test_the_error_scale_is_symmetric_and_says_what_it_clips():
    values = np.concatenate([np.linspace(-1, 1, 1000), [50.0]])
    limit, extend = symmetric_range(values)
    assert 0.9 < limit < 50
    assert extend == "both"
    assert symmetric_range(np.array([0.0, np.nan])) == (1.0, "neither")
    assert symmetric_range(np.array([-2.0, 1.0, np.nan, 2.0])) == (2.0, "neither")
    low, high, extend = colour_range(np.concatenate([np.linspace(0, 1, 1000), [50.0]]))
    assert (0 < low < 0.01, 0.98 < high < 2, extend) == (True, True, "both")
    low, high, extend = colour_range(np.full(5, 3.0))
    assert low < 3.0 < high
    assert extend == "neither"


def test_the_title_carries_the_area_weighted_error_and_the_date():
    assert area_rmse(np.array([1.0, 3.0, np.nan]), np.array([3.0, 1.0, 9.0])) == "1.732"
    assert format_date(np.datetime64("2016-02-01T00:00:00")) == "2016-02-01"
    assert format_date(np.datetime64("2016-02-01T06:00:00")) == "2016-02-01 06:00"
    assert format_date(np.datetime64("2016-02", "M")) == "2016-02"
    assert style.pretty_units("m**2 s**-2") == "m² s⁻²"


def test_large_errors_of_persistence_do_not_make_those_of_the_forecast_pale():
    error = np.linspace(-1.0, 1.0, 1001)
    own, _ = symmetric_range(error)
    assert _error_range(error, 20.0 * error) == (2.0 * own, "both")
    assert _error_range(error, 1.2 * error)[0] == symmetric_range(np.concatenate([error, 1.2 * error]))[0]
    assert _error_range(0.0 * error, error)[0] == symmetric_range(np.concatenate([0.0 * error, error]))[0]
