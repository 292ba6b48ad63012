"""What a run folder holds for a tracker, and the record of its names there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etesian.errors import UserError
from etesian.kernels.record import KernelRecord, to_json
from etesian.training.tracking.content import (
    Point,
    metric_name,
    pictures,
    read_parameters,
    read_points,
    score_metrics,
)
from etesian.training.tracking.record import TrackingRecord

SCORES = {
    "variables": {
        "t@2m": {
            "lead_times": {
                "1 month": {"model": {"rmse": 1.5}, "persistence": {"rmse": 3.0}, "skill": None},
                "2 months": {"model": {"rmse": 2.5}, "persistence": {"rmse": 3.0}, "skill": 0.25},
            }
        }
    }
}


def test_metrics_come_from_the_csv_and_the_scores(tmp_path: Path) -> None:
    assert read_points(tmp_path) == []
    (tmp_path / "metrics.csv").write_text("epoch,step,train_loss,val_loss\n0,0,0.5,\n0,4,0.25,0.125\n1,5,0.1")
    (tmp_path / "metrics.json").write_text(json.dumps(SCORES))
    assert read_points(tmp_path) == [
        Point("epoch", 0, 0), Point("train_loss", 0.5, 0), Point("epoch", 0, 4), Point("train_loss", 0.25, 4),
        Point("val_loss", 0.125, 4), Point("test_rmse/t_2m/1month", 1.5, 4), Point("test_rmse/t_2m/2months", 2.5, 4),
        Point("test_skill/t_2m/2months", 0.25, 4),
    ]  # fmt: skip
    assert len(score_metrics(SCORES)) == 3
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="is no history of a run"):
        read_points(tmp_path)


def test_parameters_are_flat(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: {b: [1, 2], c: null, d: {}}\ntext: x\nlong: " + "y" * 600)
    record = KernelRecord("LayerNorm", "model", "torch.nn.LayerNorm", {"eps": 1e-5})
    (tmp_path / "kernels.json").write_text(json.dumps(to_json([record])))
    parameters = read_parameters(tmp_path)
    assert len(parameters.pop("long")) == 500
    assert parameters == {
        "a.b": "[1, 2]", "a.c": "null", "a.d": "{}", "text": "x",
        "kernels.model.layer_kernels.LayerNorm": "torch.nn.LayerNorm(eps=1e-05)",
    }  # fmt: skip
    (tmp_path / "kernels.json").write_text('[{"slots": 1}]')
    with pytest.raises(UserError, match="is no record of kernels"):
        read_parameters(tmp_path)
    (tmp_path / "kernels.json").unlink()
    with pytest.raises(UserError, match=r"kernels\.json can't be read: .* No such file"):
        read_parameters(tmp_path)


def test_names_and_pictures(tmp_path: Path) -> None:
    assert metric_name("test_rmse/q@850 hPa/6h") == "test_rmse/q_850 hPa/6h"
    (tmp_path / "plots").mkdir()
    for name in ("b.png", "a.png", "c.txt"):
        (tmp_path / "plots" / name).touch()
    assert [file.name for file in pictures(tmp_path)] == ["a.png", "b.png"]


def test_the_record_is_kept(tmp_path: Path) -> None:
    assert TrackingRecord.read(tmp_path) == TrackingRecord()
    TrackingRecord({"http://a": "1"}, "w", 5, "KILLED").write(tmp_path)
    assert TrackingRecord.read(tmp_path) == TrackingRecord({"http://a": "1"}, "w", 5, "KILLED")
    for text in ("{", '{"run": 1}'):
        (tmp_path / "tracking.json").write_text(text)
        with pytest.raises(UserError, match="the run then gets new names"):
            TrackingRecord.read(tmp_path)
