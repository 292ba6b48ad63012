import numpy as np
import pytest

from etesian.data.period import Spacing, check_covered, parse_date, spacing_of, timestep_stride
from etesian.errors import UserError
from small_stores import monthly, six_hourly

KEYS = {"start": "dataloader.training.start", "end": "dataloader.training.end"}


@pytest.mark.parametrize(
    ("value", "date", "unit"),
    [
        (1979, "1979", "Y"), ("1979", "1979", "Y"), ("1979-03", "1979-03", "M"), (197903, "1979-03", "M"),
        ("1979-3", "1979-03", "M"), ("1979-03-05", "1979-03-05", "D"), (19790305, "1979-03-05", "D"),
        ("1979-03-05T06:00:00", "1979-03-05T06:00:00", "s"), ("1979-03-05 06:00:00", "1979-03-05T06:00:00", "s"),
    ],
)  # fmt: skip
def test_the_forms_of_a_date(value, date, unit):
    parsed = parse_date(value, "key")
    assert parsed == np.datetime64(date, unit)
    assert np.datetime_data(parsed.dtype)[0] == unit


def test_a_share_is_not_a_date():
    assert parse_date("80%", "key") is None
    assert parse_date("12.5%", "key") is None


@pytest.mark.parametrize(
    "value", ["1979-13", "1979-02-30", "79", "1979-01-01T06", "last year", "120%", "1979-01-01T6:00"]
)
def test_other_forms_are_errors_that_list_the_forms(value):
    with pytest.raises(UserError, match="is not a date") as error:
        parse_date(value, "dataloader.test.end")
    assert error.value.problems[0].where == "dataloader.test.end"
    assert "1979-01-01T06:00:00" in error.value.problems[0].allowed


def covered(dates, start=None, end=None):
    check_covered(dates, {"start": start, "end": end}, KEYS)


def test_a_period_is_compared_at_its_own_precision():
    dates = six_hourly(40, "2000-01-01T06:00:00")
    covered(dates, 2000, 2000)
    covered(dates, "2000-01", "2000-01-11")
    covered(dates, "2000-01-01T06:00:00")
    with pytest.raises(UserError, match="lies before the data"):
        covered(dates, "2000-01-01T00:00:00")


def test_monthly_data_is_covered_by_months_and_years():
    dates = monthly(24, "1999-01")
    covered(dates, "1999-01", "2000-12")
    covered(dates, 1999, 2000)
    covered(dates, None, "50%")


def test_a_start_before_and_an_end_after_the_data_are_both_reported():
    with pytest.raises(UserError) as error:
        covered(monthly(24, "1999-01"), "1997-01", "2001-06")
    start, end = error.value.problems
    assert start.where == "dataloader.training.start"
    assert "the data covers 1999-01-01T00:00:00 to 2000-12-01T00:00:00" in start.what
    assert start.mend == "dataloader.training.start=1999-01"
    assert end.where == "dataloader.training.end"
    assert end.mend == "dataloader.training.end=2000-12"


@pytest.mark.parametrize("bounds", [{"start": 2005}, {"end": 1990}])
def test_a_period_outside_the_data_is_an_error(bounds):
    with pytest.raises(UserError, match="the data covers"):
        covered(monthly(24, "1999-01"), **bounds)


def test_a_period_that_ends_before_it_starts_is_an_error():
    with pytest.raises(UserError, match="start 2000-03 lies after end 2000-02"):
        covered(monthly(24, "1999-01"), "2000-03", "2000-02")
    covered(monthly(24, "1999-01"), "2000-03", "2000-03")
    covered(monthly(24, "1999-01"), "2000-03", 2000)


def test_spacing_in_time_and_in_calendar_months():
    assert spacing_of(six_hourly(4), "key") == Spacing(seconds=6 * 3600)
    assert spacing_of(monthly(24), "key") == Spacing(months=1)
    assert spacing_of(monthly(24)[::3], "key") == Spacing(months=3)
    assert spacing_of(monthly(24) + np.timedelta64(14, "D"), "key") == Spacing(months=1)
    assert spacing_of(monthly(1), "key") is None
    assert str(Spacing(seconds=6 * 3600)) == "6h"
    assert str(Spacing(months=3)) == "3 calendar months"


@pytest.mark.parametrize(
    "dates", [np.delete(six_hourly(6), 3), np.delete(monthly(12), 5), six_hourly(6)[::-1], six_hourly(4)[[0, 0, 1, 2]]]
)
def test_irregular_dates_are_an_error(dates):
    with pytest.raises(UserError, match="not evenly spaced") as error:
        spacing_of(dates, "dataloader.test")
    assert error.value.problems[0].where == "dataloader.test"


def test_the_irregular_pair_is_named():
    with pytest.raises(UserError, match="2000-01-01T12:00:00 is followed by 2000-01-02T00:00:00"):
        spacing_of(np.delete(six_hourly(6), 3), "key")


@pytest.mark.parametrize(("timestep", "stride"), [(None, 1), ("6h", 1), ("12h", 2), ("1d", 4)])
def test_a_timestep_is_a_stride(timestep, stride):
    assert timestep_stride(six_hourly(8), timestep) == stride


@pytest.mark.parametrize(
    ("timestep", "what"),
    [
        ("9h", "multiple"),
        ("3h", "multiple"),
        ("0h", "above 0"),
        ("soon", "not a duration"),
        ("999999999999999h", "not a duration"),
        ("\N{ARABIC-INDIC DIGIT SIX}h", "ASCII"),
    ],
)
def test_other_timesteps_are_errors(timestep, what):
    with pytest.raises(UserError, match=what) as error:
        timestep_stride(six_hourly(8), timestep)
    assert error.value.problems[0].where == "task.timestep"


def test_monthly_data_takes_no_timestep_in_hours():
    assert timestep_stride(monthly(5), None) == 1
    with pytest.raises(UserError, match="1 calendar month apart") as error:
        timestep_stride(monthly(5), "744h")
    assert error.value.problems[0].mend == "task.timestep=null"


@pytest.mark.parametrize(
    "value", ["now", "today", "NaT", "\N{ARABIC-INDIC DIGIT EIGHT}0%", "200\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_what_is_no_fixed_date(value):
    with pytest.raises(UserError, match="is not a date"):
        parse_date(value, "dataloader.training.start")
