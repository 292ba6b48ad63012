"""A file is parsed once while its text stays, and nothing of one config gets into the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian.compose import compose
from etesian.places import package_config_dir


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for value in ("1", "2", "1"):
        (tmp_path / "mine.yaml").write_text(f"defaults: [train, _self_]\ntraining: {{seed: {value}}}\n")
        assert compose("mine").tree["training"]["seed"] == int(value)
        (tmp_path / "data" / "mine.yaml").write_text(f"defaults: [ncep_monthly]\nforcing: [f{value}]\n")
        assert compose("mine", overrides=["data=mine"]).tree["data"]["forcing"] == [f"f{value}"]
    shipped = compose("mine").tree["data"]
    own = tmp_path / "data" / "ncep_monthly.yaml"
    own.write_text((package_config_dir() / "data" / own.name).read_text().replace("frequency: null", "frequency: 2M"))
    assert compose("mine").tree["data"] == {**shipped, "frequency": "2M"}
    own.unlink()
    assert compose("mine").tree["data"] == shipped


def test_what_was_composed_before_changes_nothing() -> None:
    before = compose()
    compose(overrides=["model.num_channels=8", "~diagnostics.plot", "model/layer_kernels=rmsnorm"])
    assert compose() == before
