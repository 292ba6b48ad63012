from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr
from omegaconf import OmegaConf

from etesian.data.normalizer import Normalizer
from etesian.data.open import open_split, open_splits
from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import DataSettings
from etesian.schema.dataloader import DataloaderSettings, SplitSettings
from small_stores import COMPUTED, lat_lon_grid, monthly

KEY = "dataloader.training"
PERIODS = {
    "training": ("2000-01-01", "2000-01-05"),
    "validation": ("2000-01-06", "2000-01-07"),
    "test": ("2000-01-08", None),
}


def split(path, start=None, end=None, **options):
    return SplitSettings(dataset_config={"dataset": str(path)} | options, start=start, end=end)


@pytest.fixture
def open_one(tmp_path):
    return lambda *args, **options: open_split("training", split(*args, **options), tmp_path / "cache")


@pytest.fixture
def open_three(tmp_path):
    """Return an opener of three splits; ``validation={"path": ..., "start": ...}`` changes one of them."""

    def open_them(path, data=None, **changes):
        sections = {}
        for name, (start, end) in PERIODS.items():
            sections[name] = split(**({"path": path, "start": start, "end": end} | changes.get(name, {})))
        ones = {"training": 1, "validation": 1, "test": 1}
        settings = DataloaderSettings.model_validate({"batch_size": ones} | sections)
        return open_splits(settings, DataSettings.model_validate(data or {}), tmp_path / "cache")

    return open_them


def problem_of(error):
    (problem,) = error.value.problems
    return problem


# what a split can be


def test_a_period_with_both_ends_included(make_store, open_one):
    dataset = open_one(make_store(), "2000-01-02", "2000-01-03")
    assert len(dataset) == 8
    assert str(dataset.dates[0]) == "2000-01-02T00:00:00"
    assert str(dataset.dates[-1]) == "2000-01-03T18:00:00"


def test_months_and_years_of_monthly_data(make_store, open_one):
    path = make_store(dates=monthly(36, "1999-01"), frequency="31d")
    assert len(open_one(path, "1999-03", "2000-12")) == 22
    assert len(open_one(path, 2000, 2000)) == 12
    assert len(open_one(path, "2000-02", None)) == 23
    assert len(open_one(path, None, "50%")) == 18


def test_options_are_passed_through_and_null_ones_left_out(make_store, open_one):
    dataset = open_one(
        make_store(), "2000-01-02", frequency="12h", select=["u", "t"], rename={"u": "wind"}, drop=None, reorder=None
    )
    assert list(dataset.variables) == ["wind", "t"]
    assert dataset.dates[1] - dataset.dates[0] == np.timedelta64(12, "h")


def test_datasets_joined(make_store, open_one, tmp_path):
    a, b = make_store("a.zarr", variables=("t", "u")), make_store("b.zarr", variables=("q",))
    joined = SplitSettings(dataset_config={"join": [{"dataset": str(a), "drop": "u"}, str(b)]}, start="2000-01-02")
    dataset = open_split("training", joined, tmp_path)
    assert list(dataset.variables) == ["t", "q"]


def test_a_zip_file(make_store, open_one, tmp_path):
    path = make_store()
    with zarr.ZipStore(str(tmp_path / "dataset.zip"), mode="w") as archive:
        zarr.copy_store(zarr.DirectoryStore(str(path)), archive)
    assert open_one(tmp_path / "dataset.zip").shape == (40, 4, 1, 24)


def test_missing_dates_are_kept_for_the_windows_to_skip(make_store, open_one):
    assert open_one(make_store(missing=[6]), "2000-01-02").missing == {2}


def test_the_embedded_dataset_by_name(tmp_path):
    settings = split("embedded:ncep-monthly-5deg", "1948-01", "2005-12", frequency=None)
    dataset = open_split("training", settings, tmp_path)
    assert dataset.shape == (696, 8, 1, 2592)


# the store


def test_no_store_there(open_one, tmp_path):
    with pytest.raises(UserError, match="there is no dataset at") as error:
        open_one(tmp_path / "absent.zarr")
    assert problem_of(error).where == f"{KEY}.dataset_config.dataset"
    assert "system.input.dataset" in problem_of(error).mend


@pytest.mark.parametrize("name", ["an-unknown-name", "/a/path/without/suffix", "embedded:nonsense"])
def test_no_such_name(open_one, name):
    with pytest.raises(UserError) as error:
        open_one(name)
    assert name in problem_of(error).what
    assert problem_of(error).where.startswith(f"{KEY}.dataset_config")


def test_what_is_no_store(open_one, tmp_path):
    (tmp_path / "text.zarr").write_text("no store")
    (tmp_path / "text.zip").write_text("no store")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(UserError, match="it is a file"):
        open_one(tmp_path / "text.zarr")
    with pytest.raises(UserError, match="not a zip file with a zarr store"):
        open_one(tmp_path / "text.zip")
    with pytest.raises(UserError, match="it holds no zarr group"):
        open_one(tmp_path / "empty.zarr")


def test_zarr_format_3(open_one, tmp_path):
    (tmp_path / "new.zarr").mkdir()
    (tmp_path / "new.zarr" / "zarr.json").write_text("{}")
    with pytest.raises(UserError, match="format 3"):
        open_one(tmp_path / "new.zarr")


@pytest.mark.parametrize(
    "name", ["data", "dates", "latitudes", "longitudes", "mean", "stdev", "maximum", "minimum", "variables"]
)
def test_what_a_store_lacks_is_named(make_store, open_one, name):
    with pytest.raises(UserError, match=f"lacks .*'{name}'"):
        open_one(make_store(leave_out=[name]))


def test_all_that_a_store_lacks_is_named_at_once(make_store, open_one):
    with pytest.raises(UserError, match="'latitudes', array 'mean', attribute 'variables'"):
        open_one(make_store(leave_out=["latitudes", "mean", "variables"]))


def test_another_layout(make_store, open_one):
    path = make_store()
    zarr.open_group(str(path)).attrs["layout"] = "tabular"
    with pytest.raises(UserError, match="layout 'tabular'"):
        open_one(path)


def test_sizes_that_disagree(make_store, open_one):
    path = make_store()
    zarr.open_group(str(path))["latitudes"].resize(20)
    with pytest.raises(UserError, match="20 points"):
        open_one(path)


# the options


def test_no_dataset_at_all(tmp_path):
    with pytest.raises(UserError, match="names no dataset"):
        open_split("training", SplitSettings(dataset_config={"dataset": None}), tmp_path)


def test_an_option_that_does_not_exist(make_store, open_one):
    with pytest.raises(UserError, match="no option 'selct'") as error:
        open_one(make_store(), selct=["t"])
    assert problem_of(error).where == f"{KEY}.dataset_config.selct"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"select": ["tt"]}, "unknown variable: tt"),
        ({"drop": ["tt"]}, "unknown variables: {'tt'}"),
        ({"rename": {"tt": "x"}}, "AssertionError tt"),
        ({"frequency": "7h"}, "not a multiple"),
        ({"frequency": "now and then"}, "Cannot convert frequency"),
    ],
)
def test_the_text_of_a_failure_is_kept(make_store, open_one, options, cause):
    with pytest.raises(UserError) as error:
        open_one(make_store(), **options)
    assert cause in problem_of(error).what
    assert problem_of(error).where == f"{KEY}.dataset_config"


def test_a_start_given_twice(make_store, tmp_path):
    settings = SplitSettings(dataset_config={"dataset": str(make_store()), "start": "2000-01-03"}, start="2000-01-02")
    with pytest.raises(UserError, match="start is given twice") as error:
        open_split("training", settings, tmp_path)
    assert problem_of(error).where == f"{KEY}.start, {KEY}.dataset_config.start"


def test_a_period_among_the_options_is_checked_as_well(make_store, tmp_path):
    settings = SplitSettings(dataset_config={"dataset": str(make_store()), "start": 1999})
    with pytest.raises(UserError, match="lies before the data") as error:
        open_split("training", settings, tmp_path)
    assert problem_of(error).where == f"{KEY}.dataset_config.start"


def test_a_period_that_the_data_does_not_cover(make_store, open_one):
    with pytest.raises(UserError, match="the data covers 2000-01-01T00:00:00 to 2000-01-10T18:00:00") as error:
        open_one(make_store(), "1998-01-01", "2000-01-05")
    assert problem_of(error).where == f"{KEY}.start"


def test_a_period_between_two_dates_is_empty(make_store, open_one):
    with pytest.raises(UserError, match="the training split holds no date"):
        open_one(make_store(), "2000-01-02T01:00:00", "2000-01-02T02:00:00")


def test_dates_out_of_order(make_store, open_one):
    with pytest.raises(UserError, match="the dates are not in order"):
        open_one(make_store(), shuffle=True)


# three splits


def test_three_splits(make_store, open_three):
    splits = open_three(make_store())
    assert [(name, len(dataset)) for name, dataset in splits.items()] == [
        ("training", 20), ("validation", 8), ("test", 12)
    ]  # fmt: skip


def test_splits_that_overlap(make_store, open_three):
    with pytest.raises(UserError, match="training and validation splits share 4 dates") as error:
        open_three(make_store(), validation={"start": "2000-01-05"})
    problem = problem_of(error)
    assert "2000-01-05T00:00:00 to 2000-01-05T18:00:00" in problem.what
    assert problem.where == "dataloader.training, dataloader.validation"


def test_every_overlap_is_reported(make_store, open_three):
    with pytest.raises(UserError) as error:
        open_three(make_store(), training={"end": None})
    assert [problem.where for problem in error.value.problems] == [
        "dataloader.training, dataloader.validation", "dataloader.training, dataloader.test"
    ]  # fmt: skip


def test_splits_of_unlike_datasets(make_store, open_three):
    path = make_store()
    with pytest.raises(UserError, match="lacks rain, unlike the training dataset"):
        open_three(path, validation={"drop": "rain"})
    with pytest.raises(UserError, match="in another order"):
        open_three(path, test={"select": ["u", "t", "forcing", "rain"]})
    with pytest.raises(UserError, match="has besides more"):
        open_three(path, test={"path": make_store("b.zarr", variables=("t", "u", "forcing", "rain", "more"))})
    with pytest.raises(UserError, match="the test grid is not the training grid"):
        open_three(path, test={"path": make_store("c.zarr", grid=lat_lon_grid(3, 6))})
    with pytest.raises(UserError, match="2 ensemble members in test, 1 in training"):
        open_three(path, test={"path": make_store("d.zarr", members=2)})
    with pytest.raises(UserError, match="12h apart in validation, 6h in training"):
        open_three(path, validation={"frequency": "12h"})


def test_a_frequency_that_no_split_has(make_store, open_three):
    path = make_store()
    twelve = {"frequency": "12h"}
    with pytest.raises(UserError, match=r"data\.frequency is '12h', but the training dates are 6h apart") as error:
        open_three(path, twelve)
    assert len(error.value.problems) == 3
    assert len(open_three(path, twelve, training=twelve, validation=twelve, test=twelve).training) == 10


def test_monthly_dates_have_no_frequency_in_days(make_store, open_three):
    path = make_store(dates=monthly(36), frequency="31d")
    periods = {"training": {"start": 2000, "end": 2000}, "validation": {"start": 2001, "end": 2001}}
    periods["test"] = {"start": 2002}
    with pytest.raises(UserError, match="1 calendar month apart") as error:
        open_three(path, {"frequency": "31d"}, **periods)
    assert error.value.problems[0].mend == "data.frequency=null"
    assert len(open_three(path, None, **periods).test) == 12


def test_nans_at_the_first_date_without_an_imputer(make_store, open_three):
    path = make_store(nan_at=[(0, "u", 5), (20, "rain", 1)])
    with pytest.raises(UserError) as error:
        open_three(path)
    first, second = error.value.problems
    assert first.what.startswith("variable 'u' holds 5 NaNs at 2000-01-01T00:00:00 (training)")
    assert second.what.startswith("variable 'rain' holds 1 NaN at 2000-01-06T00:00:00 (validation)")
    processors = {"imputer": {"mean": ["u"], "constant": {"rain": 0.0}}}
    assert len(open_three(path, {"processors": processors}).training) == 20


def test_nans_in_the_statistics_without_an_imputer(make_store, open_three):
    path = make_store()
    zarr.open_group(str(path))["mean"][1] = np.nan
    with pytest.raises(UserError, match="'u' holds NaNs at some date, as its statistics say"):
        open_three(path)


def test_a_split_of_missing_dates_only(make_store, open_three):
    with pytest.raises(UserError, match="every date of the validation split is missing"):
        open_three(make_store(missing=range(20, 28)))


def test_the_door_looks_past_missing_dates(make_store, open_three):
    assert len(open_three(make_store(missing=[0, 20])).training) == 20


def test_metadata_comes_along(make_store, open_one):
    dataset = open_one(make_store(metadata={"forcing": COMPUTED}), rename={"forcing": "sun"})
    assert dataset.variables_metadata["sun"]["computed_forcing"]


def test_the_default_config_opens(tmp_path):
    groups = {"data": "ncep_monthly", "dataloader": "ncep_monthly", "system": "cpu"}
    config = Path(__file__).parents[3] / "config"
    tree = OmegaConf.create({group: OmegaConf.load(config / group / f"{name}.yaml") for group, name in groups.items()})
    tree.system.input.dataset = OmegaConf.load(config / "train.yaml").system.input.dataset
    sections = OmegaConf.to_container(tree, resolve=True)
    data = DataSettings.model_validate(sections["data"])
    splits = open_splits(DataloaderSettings.model_validate(sections["dataloader"]), data, tmp_path)
    assert [len(dataset) for _, dataset in splits.items()] == [696, 120, 122]
    dataset = splits.training
    variables = Variables.from_roles(dataset.variables, data, dataset.variables_metadata)
    assert variables.output == ("t_sig995",)
    computed = Variables.from_roles(dataset.variables, DataSettings(forcing="computed"), dataset.variables_metadata)
    assert computed == variables
    assert Normalizer(variables, dataset.statistics, data.processors.normalizer).methods["insolation"] == "none"


def test_opening_a_store_leaves_no_process_behind(make_store, open_one):
    before = set(psutil.Process().children(recursive=True))  # of tests before this one
    open_one(make_store())
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_chunk_that_is_cut_short(make_store, open_three):
    store = make_store()
    for chunk in (store / "data").glob("[0-9]*"):
        chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(UserError, match="cannot be read"):
        open_three(store)
