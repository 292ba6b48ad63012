"""A kernel that passes the trial before a run, and fails on the rows of the run itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import SMALL, train

from small_stores import write_store

KEY = "model.processor.layer_kernels.LayerNorm"


def test_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_store(tmp_path / "waves.zarr")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    kernel = f"{KEY}={{_target_:faulty_kernels.FailsOnManyRows}}"
    assert train(*SMALL, f"system.input.dataset={tmp_path}/waves.zarr", kernel) == 2
    said = capsys.readouterr().err
    assert "error: slot LayerNorm of the processor: faulty_kernels.FailsOnManyRows failed at " in said
    assert ": RuntimeError: too many rows: " in said
    assert f"where:   {KEY}\n" in said
