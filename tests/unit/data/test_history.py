"""Validation and test forecast every date of their period."""

from __future__ import annotations

import numpy as np
import pytest

from etesian.data.history import with_initial_states
from etesian.data.open import open_splits
from etesian.schema.data import DataSettings
from etesian.schema.dataloader import DataloaderSettings
from small_stores import monthly


@pytest.fixture
def open_with(tmp_path):
    def open_them(path, periods, dates):
        sections = {
            name: {"dataset_config": {"dataset": str(path)}, "start": start, "end": end}
            for name, (start, end) in periods.items()
        }
        ones = {"training": 1, "validation": 1, "test": 1}
        dataloader = DataloaderSettings.model_validate({"batch_size": ones} | sections)
        splits = open_splits(dataloader, DataSettings(), tmp_path)
        return with_initial_states(splits, dataloader, tmp_path, dates)

    return open_them


def days(dataset):
    return [str(date.astype("datetime64[h]")) for date in (dataset.dates[0], dataset.dates[-1])]


PERIODS = {
    "training": ("2000-01-01", "2000-01-05"),
    "validation": ("2000-01-06", "2000-01-07"),
    "test": ("2000-01-08", None),
}


def test_initial_states_lie_before_the_period(make_store, open_with):
    splits = open_with(make_store(), PERIODS, 2)
    assert days(splits.training)[0] == "2000-01-01T00"
    assert days(splits.validation) == ["2000-01-05T12", "2000-01-07T18"]
    assert days(splits.test)[0] == "2000-01-07T12"


def test_no_further_back_than_the_data(make_store, open_with):
    periods = {"validation": PERIODS["training"], "training": PERIODS["validation"], "test": PERIODS["test"]}
    splits = open_with(make_store(), periods, 3)
    assert days(splits.validation)[0] == "2000-01-01T00"
    assert days(splits.test)[0] == "2000-01-07T06"


def test_calendar_months(make_store, open_with):
    path = make_store(dates=monthly(60))
    periods = {"training": (2000, 2001), "validation": (2002, 2002), "test": (2003, None)}
    splits = open_with(path, periods, 13)
    assert days(splits.validation)[0] == "2000-12-01T00"
    assert days(splits.test)[0] == "2001-12-01T00"
    assert np.array_equal(splits.test[13], open_with(path, periods, 0).test[0])


def test_shares_of_the_dates(make_store, open_with):
    periods = {"training": (None, "60%"), "validation": ("65%", "80%"), "test": ("85%", None)}
    path = make_store()
    own, more = open_with(path, periods, 0), open_with(path, periods, 2)
    assert len(more.test) == len(own.test) + 2
    assert more.test.dates[2] == own.test.dates[0]
    assert more.validation.dates[-1] == own.validation.dates[-1]
