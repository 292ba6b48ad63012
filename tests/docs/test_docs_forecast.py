"""The forecast that docs/checkpoints.md shows, from a dataset with more variables, and what docs/inference.md loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_checkpoint
import torch
from doc_pages import blocks

from etesian import cli
from etesian.checkpoint.inference import InferenceCheckpoint
from small_stores import lat_lon_grid, write_store


def test_the_shown_forecast_is_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small_checkpoint.write(tmp_path / "best.ckpt")
    assert cli.main(["checkpoint", "export", "best.ckpt", "-o", "inference.ckpt"]) == 0
    fields = np.random.default_rng(0).uniform(1, 2, (8, 5, 1, 14)).astype(np.float32)
    write_store(tmp_path / "my.zarr", variables=("tp", "u", "q", "t", "insolation"), grid=lat_lon_grid(2, 7),
                dates=8, data=fields)  # fmt: skip
    (block,) = [block for block in blocks("python") if block.page == "docs/checkpoints.md"]
    names: dict[str, Any] = {}
    capsys.readouterr()
    exec(block.text, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "2000-01-01T12:00:00", "2000-01-01T18:00:00", "2000-01-02T00:00:00", "2000-01-02T06:00:00",
    ]  # fmt: skip
    assert names["forecasts"].shape == (1, 4, 1, 14, 3)
    x = torch.as_tensor(fields[None, :, [3, 4, 2, 0]]).permute(0, 1, 3, 4, 2)  # t, insolation, q, tp
    assert torch.equal(names["forecasts"], names["forecaster"].rollout(x, 4))


def test_the_shown_folder_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs/first/checkpoints"
    checkpoint, _ = small_checkpoint.make()
    InferenceCheckpoint(folder, checkpoint["etesian"], torch.device("cpu")).write(checkpoint, folder / "last.ckpt")
    (block,) = [block for block in blocks("python") if block.page == "docs/inference.md"]
    exec(block.text, {})
    assert capsys.readouterr().out == "2 ('t', 'q', 'tp')\n"
