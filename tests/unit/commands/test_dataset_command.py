import time

import numpy as np
import pytest
import zarr
from anemoi.datasets import open_dataset

from etesian.cli import main
from etesian.commands.dataset import describe_store
from etesian.errors import UserError

MAKE = ["dataset", "make", "shallow-water"]
SMALL = ["--truncation", "10", "--days", "1", "--spinup-days", "0"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "flow.zarr"
    assert main([*MAKE, str(path), *SMALL, "--grid", "regular", "--degrees", "10", "--start", "2001-07-01"]) == 0
    return path


def test_make_writes_the_store_that_was_asked_for(store):
    dataset = open_dataset(str(store))
    assert dataset.shape == (4, 11, 1, 18 * 36)
    assert dataset.dates[0] == np.datetime64("2001-07-01T00")


def test_make_takes_the_frequency_and_the_seed(tmp_path):
    fields = []
    for seed in ("0", "1"):
        path = tmp_path / f"{seed}.zarr"
        assert main([*MAKE, str(path), *SMALL, "--frequency", "12h", "--seed", seed]) == 0
        fields.append(open_dataset(str(path))[:])
    assert fields[0].shape[0] == 2
    assert np.abs(fields[0] - fields[1]).max() > 1.0


def test_make_replaces_a_store_only_when_asked(store, capsys):
    assert main([*MAKE, str(store), *SMALL]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert open_dataset(str(store)).shape[-1] == 18 * 36


def test_overwrite_replaces_it(tmp_path):
    path = tmp_path / "flow.zarr"
    assert main([*MAKE, str(path), *SMALL]) == 0
    assert main([*MAKE, str(path), *SMALL, "--grid", "octahedral", "--overwrite"]) == 0
    assert open_dataset(str(path)).resolution == "o8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--degrees", "5"], "no meaning for the gaussian grid"),
        (["--grid", "regular", "--degrees", "7"], "does not divide 180"),
        (["--grid", "hexagonal"], "no value of --grid"),
        (["--frequency", "20m"], "whole number of hours"),
        (["--grid", "regular", "--degrees", "1e-300"], "does not divide 180"),
        (["--grid", "regular", "--degrees", "0.001"], "is finer than"),
        (["--days", "\N{ARABIC-INDIC DIGIT THREE}"], "is no number"),
        (["--seed", "\N{ARABIC-INDIC DIGIT THREE}"], "is no whole number"),
        (["--start", "x", "--days", "0"], "not a date"),
    ],
)
def test_make_refuses_what_makes_no_sense(tmp_path, capsys, options, message):
    assert main([*MAKE, str(tmp_path / "flow.zarr"), *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_describe_prints_dates_grid_units_and_statistics(store, capsys):
    assert main(["dataset", "describe", str(store)]) == 0
    text = capsys.readouterr().out
    for part in ("2001-07-01 00:00 to 2001-07-01 18:00", "6:00:00", "648 points (18 x 36)", "m s-1", "orography"):
        assert part in text
    assert "…" not in text


def test_describe_reads_roles_and_statistics(store):
    _, variables = describe_store(str(store))
    entries = {entry["name"]: entry for entry in variables}
    dataset = open_dataset(str(store))
    assert entries["u"]["role"] == ""
    assert entries["orography"]["role"] == "constant"
    assert entries["cos_latitude"]["role"] == "computed constant"
    assert entries["cos_julian_day"]["role"] == "computed"
    assert entries["u"]["mean"] == dataset.statistics["mean"][0]
    assert entries["u"]["tendency"] == dataset.statistics_tendencies()["stdev"][0]


def test_describe_does_without_statistics_of_tendencies(store, tmp_path, capsys):
    _copy(store, tmp_path / "bare.zarr", without="statistics_tendencies_6h_stdev")
    _, variables = describe_store(str(tmp_path / "bare.zarr"))
    assert all(entry["tendency"] is None for entry in variables)
    assert main(["dataset", "describe", str(tmp_path / "bare.zarr")]) == 0
    assert "step st. dev." not in capsys.readouterr().out


def test_describe_says_what_a_store_lacks(store, tmp_path):
    _copy(store, tmp_path / "bare.zarr", without="mean")
    with pytest.raises(UserError, match="no 'mean' in it"):
        describe_store(str(tmp_path / "bare.zarr"))


def test_describe_of_nothing_is_an_error(tmp_path, capsys):
    assert main(["dataset", "describe", str(tmp_path / "none.zarr")]) == 2
    assert "there is no store" in capsys.readouterr().err


def _copy(source, target, *, without: str) -> None:
    zarr.copy_store(zarr.DirectoryStore(str(source)), zarr.DirectoryStore(str(target)))
    del zarr.open_group(str(target))[without]


def test_describe_takes_the_names_that_train_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path))
    assert main(["dataset", "describe", "embedded:ncep-monthly-5deg"]) == 0
    shown = capsys.readouterr().out
    assert "t_sig995" in shown
    assert "…" not in shown
    assert main(["dataset", "describe", "embedded:ncep"]) == 2
    assert "ncep-monthly-5deg" in capsys.readouterr().err


SYNTHETIC = ["dataset", "make", "synthetic"]


def test_make_synthetic_writes_what_was_asked_for_and_says_its_size(tmp_path, capsys):
    path = tmp_path / "a.zarr"
    options = ["--grid", "o8", "--dates", "3", "--prognostic", "2", "--forcing", "1", "--diagnostic", "1",
               "--start", "2001-07-01", "--frequency", "12h", "--seed", "4"]  # fmt: skip
    assert main([*SYNTHETIC, str(path), *options]) == 0
    dataset = open_dataset(str(path))
    assert dataset.variables == ["10u", "10v", "cos_latitude", "tp"]
    assert [str(date) for date in dataset.dates[:2]] == ["2001-07-01T00:00:00", "2001-07-01T12:00:00"]
    shown = capsys.readouterr().out
    assert f"wrote {path}: 3 dates, 4 variables, 544 points, 0." in shown
    assert "  forcing: cos_latitude\n  diagnostic: tp\n" in shown


def test_make_synthetic_takes_names(tmp_path, capsys):
    path = tmp_path / "a.zarr"
    assert main([*SYNTHETIC, str(path), "--grid", "o4", "--dates", "2", "--variables", "mine", "lsm", "t_850"]) == 0
    assert open_dataset(str(path)).variables == ["mine", "lsm", "t_850"]
    assert "  diagnostic: none\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "n321"], "did you mean 'n32' or 'n320'?"),
        (["--prognostic", "0"], "--prognostic 0 is below 1"),
        (["--dates", "1"], "--dates 1 is below 2"),
        (["--variables", "2t", "--forcing", "2"], "--variables and --forcing both say"),
        (["--prognostic", "many"], "is no whole number"),
    ],
)
def test_make_synthetic_refuses_what_makes_no_sense(tmp_path, capsys, options, message):
    assert main([*SYNTHETIC, str(tmp_path / "a.zarr"), *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_make_synthetic_replaces_a_store_only_when_asked(store, capsys):
    assert main([*SYNTHETIC, str(store), "--grid", "o4"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert open_dataset(str(store)).shape[-1] == 18 * 36


@pytest.mark.parametrize(
    "options",
    [
        ["--forcing", "0", "--diagnostic", "0", "--dates", "2", "--prognostic", "100000000"],
        ["--dates", "9999999999999999999999"],
        ["--dates", "100000000000"],
        ["--frequency", "999999999999999h"],
        ["--start", "now"],
        ["--variables", ""],
        ["--variables", "2t 2t"],
    ],
    ids=" ".join,
)
def test_make_synthetic_refuses_at_once(tmp_path, capsys, options):
    began = time.process_time()
    assert main(["dataset", "make", "synthetic", str(tmp_path / "a.zarr"), "--grid", "o1", *options]) == 2
    assert time.process_time() - began < 5.0
    assert options[-2] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_memory_that_does_not_suffice_for_a_dataset(tmp_path, capsys, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("etesian.data.synthetic.store.plan_store", fail)
    assert main(["dataset", "make", "synthetic", str(tmp_path / "a.zarr")]) == 2
    said = capsys.readouterr().err
    assert "--grid" in said
    assert "model." not in said
