"""The description of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_checkpoint
import torch
from torch import nn

from etesian.checkpoint.summary import summarise
from etesian.errors import UserError


def test_a_checkpoint_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forecaster = small_checkpoint.write(tmp_path / "c.ckpt", "training.precision=bf16-mixed", "task.timestep=6h")
    summary = summarise(tmp_path / "c.ckpt")
    assert json.loads(json.dumps(summary)) == summary
    parameters = sum(parameter.numel() for parameter in forecaster.model.parameters())
    assert summary["model"] == {"kind": "graphtransformer", "channels": 16, "layers": 2, "parameters": parameters}
    assert summary["variables"]["output"] == ["t", "q", "tp"]
    assert (summary["precision"], summary["timestep"], summary["multistep_input"]) == ("bf16-mixed", "6h", 2)
    assert summary["bytes"] == (tmp_path / "c.ckpt").stat().st_size
    assert "exported" not in summary


def test_what_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.ckpt"
    torch.save(nn.Linear(1, 1), file)
    with pytest.raises(UserError, match="holds a Linear that tells nothing"):
        summarise(file)
    torch.save([1], file)
    with pytest.raises(UserError, match="is not a checkpoint of a run"):
        summarise(file)
