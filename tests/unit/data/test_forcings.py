"""Computed forcings are those that anemoi-datasets writes and anemoi-inference computes: those of earthkit-data."""

from __future__ import annotations

import datetime

import earthkit.data as ekd
import numpy as np
import pytest

from etesian.data.forcings import OF_HOUR, OF_PLACE, OF_SEASON, computed

LATITUDES, LONGITUDES = np.array([90.0, 51.5, 0.0, -33.0, -90.0]), np.array([0.0, 359.9, 100.0, 180.0, 271.5])


@pytest.mark.parametrize("date", ["2000-02-29T06:00:00", "2021-06-21T12:00:00", "2023-11-03T23:00:00"])
def test_they_are_those_of_the_ecosystem(date: str) -> None:
    names = [*OF_PLACE, *OF_SEASON, *OF_HOUR]
    fields = ekd.from_source(
        "forcings",
        latitudes=LATITUDES,
        longitudes=LONGITUDES,
        date=[datetime.datetime.fromisoformat(date)],
        param=names,
    )
    for name, field in zip(names, fields, strict=True):
        ours = computed(name, np.datetime64(date), LATITUDES, LONGITUDES)
        assert ours.shape == (5,)
        np.testing.assert_allclose(ours, field.to_numpy(flatten=True), atol=1e-12, err_msg=name)
