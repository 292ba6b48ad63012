"""Arguments of ``etesian.testing`` that make no sense: each an error that names it and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etesian.errors import Problem, UserError
from etesian.testing import ExperimentMaker, Size, SmallRun


def problem(tmp_path: Path, **arguments: Any) -> Problem:
    with pytest.raises(UserError) as caught:
        ExperimentMaker(tmp_path)(**arguments)
    (only,) = caught.value.problems
    assert only.allowed
    return only


@pytest.mark.parametrize("name", ["channels", "heads", "layers", "resolution", "batch_size"])
@pytest.mark.parametrize("value", [-1, "8", 2.0, True])
def test_a_size_that_is_no_number(name: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        Size(**{name: value})  # type: ignore[arg-type]
    (found,) = caught.value.problems
    assert found.what == f"Size.{name} is {value!r}"
    assert "or None" in str(found.allowed)


@pytest.mark.parametrize("name", ["channels", "heads", "layers", "batch_size"])
def test_a_size_of_nothing(name: str) -> None:
    with pytest.raises(UserError, match=f"Size.{name} is 0"):
        Size(**{name: 0})  # type: ignore[arg-type]
    assert Size(resolution=0).resolution == 0


def test_a_grid_that_is_no_name() -> None:
    with pytest.raises(UserError, match=r"Size\.grid is 8"):
        Size(grid=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", ["3", 2.5, 0, -1, True, None])
def test_steps(steps: Any) -> None:
    run = SmallRun.__new__(SmallRun)
    for call in (run.train, run.training_config):
        with pytest.raises(UserError, match=f"steps is {steps!r}"):
            call(steps)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("variables", "2t"), ("variables", ["2t", 3]), ("variables", 3), ("variables", []), ("variables", [""]),
        ("variables", ["2t", "2t"]), ("variables", ["2t msl"]), ("overrides", "training.seed=2"),
        ("overrides", [3]), ("overrides", None), ("size", 8), ("probe", "no"), ("config_name", None),
    ],
)  # fmt: skip
def test_other_arguments(name: str, value: object, tmp_path: Path) -> None:
    found = problem(tmp_path, **{name: value})
    assert found.where == name
    assert name in found.what


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("system.input.dataset=mine.zarr", "system.input.dataset"),
        ("system.input.graph=mine.pt", "system.input.graph"),
        ("system.input={dataset: mine.zarr}", "system.input.dataset"),
        ("++system.hardware.accelerator=cuda", "system.hardware.accelerator"),
        ("training.run_id=mine", "training.run_id"),
        ("training.load_weights_only=true", "training.load_weights_only"),
        ("dataloader.training.start=1979", "dataloader.training.start"),
    ],
)
def test_overrides_of_what_the_fixture_sets(override: str, key: str, tmp_path: Path) -> None:
    found = problem(tmp_path, overrides=["training.seed=2", override])
    assert found.what == f"overrides: {override} comes to nothing, since the fixture sets {key}"
    assert str(found.mend).startswith("leave it out: ")
