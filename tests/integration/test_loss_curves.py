"""Twenty steps of a tiny model, beside the curves in ``tests/golden`` (see ``tests/helpers/golden_curves.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_curves import CASES, GOLDEN, train_case

from small_stores import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "waves.zarr")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_the_curve_is_the_one_that_is_kept(store: Path, name: str):
    kept = json.loads(GOLDEN.read_text())[name]
    now = train_case(name, store, "run")
    assert len(now["lr"]) == len(kept["lr"]) == 20
    assert now["train_loss"] == pytest.approx(kept["train_loss"], rel=1e-4)
    assert now["lr"] == pytest.approx(kept["lr"], rel=1e-6)


def test_two_runs_are_equal_bit_for_bit(store: Path):
    assert train_case("mse", store, "first") == train_case("mse", store, "second")


def test_every_case_has_a_curve_of_its_own():
    kept = [tuple(curves["train_loss"]) for curves in json.loads(GOLDEN.read_text()).values()]
    assert len(set(kept)) == len(CASES)
