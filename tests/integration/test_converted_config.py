"""Converted configs validate and train."""

from __future__ import annotations

from pathlib import Path

import peer_configs
import pytest
from runs import curve, train

from etesian.cli import main
from small_stores import write_store


@pytest.mark.slow
@pytest.mark.parametrize("layout", [peer_configs.nested, peer_configs.flat], ids=["nested", "flat"])
def test_a_converted_config_validates_and_trains(
    layout: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    store = write_store(tmp_path / "s.zarr", variables=peer_configs.VARIABLES, metadata=peer_configs.METADATA)
    assert callable(layout)
    layout(tmp_path / "theirs", store)
    assert main(["config", "convert", "theirs", "-o", "mine.yaml"]) == 0
    assert main(["config", "validate", "--config-name", "mine"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert train("--config-name", "mine", "training.run_id=run", "diagnostics.plot.enabled=false") == 0
    assert len(curve(Path("runs/run"))) == 2
