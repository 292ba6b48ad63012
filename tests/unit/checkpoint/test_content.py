"""What a checkpoint holds of an experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_checkpoint
import torch

from etesian.checkpoint.content import graph_of, kernels_of, statistics_of, variables_of
from etesian.checkpoint.read import check_weights, load_checkpoint
from etesian.errors import UserError


def test_the_experiment_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forecaster = small_checkpoint.write(tmp_path / "c.ckpt")
    content = load_checkpoint(tmp_path / "c.ckpt")["etesian"]
    assert variables_of(content) == small_checkpoint.VARIABLES == forecaster.variables
    graph = graph_of(content)
    assert graph["hidden"].num_nodes == 5
    statistics = statistics_of(content)
    assert statistics["mean"].dtype == np.float64
    np.testing.assert_array_less(statistics["mean"], statistics["maximum"])
    (norm,) = (record for record in kernels_of(content) if record.slot == "LayerNorm")
    assert (norm.target, norm.family) == ("torch.nn.LayerNorm", "layer_norm")
    assert norm.constants == {"eps": 1e-5, "elementwise_affine": True, "bias": True, "weight_offset": 0.0}


def test_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint, _ = small_checkpoint.make()
    checkpoint["etesian"] |= {"format": 1, "version": "0.0.1"}
    torch.save(checkpoint, tmp_path / "old.ckpt")
    with pytest.raises(UserError, match=r"of format 1, written by etesian 0\.0\.1") as caught:
        load_checkpoint(tmp_path / "old.ckpt")
    assert caught.value.problems[0].allowed == "format 3"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_checkpoint(tmp_path / "no.ckpt")
    with pytest.raises(UserError, match="is a folder"):
        load_checkpoint(tmp_path)


def test_weights_that_do_not_fit() -> None:
    linear = torch.nn.Linear(2, 3)
    weights = {"weight": torch.zeros(3, 4), "gain": torch.zeros(1)}
    with pytest.raises(UserError, match=r"bias is missing; gain is not .*; weight is \(3, 4\) there and \(3, 2\) here"):
        check_weights(Path("c.ckpt"), weights, linear)
