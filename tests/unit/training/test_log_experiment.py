"""Config and kernels reach every logger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.loggers.logger import Logger

from etesian.kernels.record import KernelRecord
from etesian.training.log_experiment import kernels_by_key, log_experiment
from etesian.training.metrics_csv import MetricsCSV
from etesian.training.tracking.content import markdown

RECORDS = [
    KernelRecord(
        "LayerNorm", "model", "torch.nn.RMSNorm", {"eps": 1e-6}, "rms_norm", "torch", "2.13", "preset rmsnorm"
    ),
    KernelRecord("Activation", "decoder", "my.Act", {}, "custom:my.Act", "my", "1.0", "override", "a | b"),
]


class Remembers(Logger):
    """A logger of somebody else's."""

    name, version = "remembers", ""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Any] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        raise AssertionError("these are no metrics")

    def log_hyperparams(self, params: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        self.told = params


def test_any_logger_is_told(tmp_path: Path) -> None:
    loggers = [MetricsCSV(tmp_path / "metrics.csv"), Remembers(), Remembers()]
    log_experiment(loggers, {"model": {"num_channels": 8}}, RECORDS)
    for logger in loggers[1:]:
        assert logger.told["config"] == {"model": {"num_channels": 8}}
        norm = logger.told["kernels"]["model.layer_kernels.LayerNorm"]
        assert norm == {"target": "torch.nn.RMSNorm", "arguments": {"eps": 1e-6}, "family": "rms_norm",
                        "library": "torch", "version": "2.13", "origin": "preset rmsnorm"}  # fmt: skip
    assert not (tmp_path / "metrics.csv").exists(), "numbers alone"


def test_tensorboard_shows_a_table(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = TensorBoardLogger(tmp_path, name="tensorboard", version="", default_hp_metric=False)
    log_experiment([logger], {"training": {"seed": 3, "list": [1]}}, RECORDS)
    logger.finalize("success")
    (written,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    events = accumulator.EventAccumulator(str(written))
    events.Reload()
    (text,) = events.Tensors("layer kernels/text_summary")
    assert text.tensor_proto.string_val[0].decode() == markdown(RECORDS)
    assert events.Tags()["scalars"] == []
    kept = (tmp_path / "tensorboard" / "hparams.yaml").read_text()
    assert "torch.nn.RMSNorm" in kept
    assert "seed: 3" in kept


def test_the_table() -> None:
    lines = markdown(RECORDS).splitlines()
    assert lines[2] == (
        "| model.layer_kernels.LayerNorm | torch.nn.RMSNorm(eps=1e-06) | rms_norm | torch 2.13 | preset rmsnorm |  |"
    )
    assert lines[3].endswith("| override | a / b |")
    assert list(kernels_by_key(RECORDS)) == ["model.layer_kernels.LayerNorm", "model.decoder.layer_kernels.Activation"]
