"""Ctrl-C, SIGTERM, and TensorBoard beside ``metrics.csv``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import SMALL, assert_same_run, command, curve, environment, losses, rows, train

from etesian.checkpoint.read import load_checkpoint
from small_stores import write_store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def small(tmp_path: Path, run_id: str, *options: str) -> list[str]:
    store = tmp_path / "waves.zarr"
    if not store.exists():
        write_store(store)
    return [*SMALL, f"system.input.dataset={store}", f"training.run_id={run_id}",
            "diagnostics.scores.enabled=false", *options]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_a_run_that_is_stopped_says_so_and_goes_on(tmp_path: Path, folder: Path, sent: signal.Signals, status: int):
    options = ["diagnostics.checkpoint.every_n_train_steps.save_frequency=1", "training.max_epochs=8"]
    process = subprocess.Popen(
        command(*small(tmp_path, "stopped", *options)), cwd=tmp_path, env=environment(tmp_path / "cache"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    history, deadline = folder / "stopped" / "metrics.csv", time.monotonic() + 120
    while not (history.exists() and len(history.read_text().splitlines()) > 4) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status, said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2, said
    assert 0 < len(losses(folder / "stopped")) < 56
    assert train(*small(tmp_path, "stopped", *options)) == 0
    assert train(*small(tmp_path, "whole", *options)) == 0
    assert_same_run(folder / "whole", folder / "stopped")


def test_tensorboard_holds_what_the_csv_holds(tmp_path: Path, folder: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert train(*small(tmp_path, "both", "diagnostics.log.tensorboard.enabled=true")) == 0
    (written,) = (folder / "both" / "tensorboard").glob("events.out.tfevents.*")
    events = accumulator.EventAccumulator(str(written))
    events.Reload()
    for name in ("train_loss", "lr"):
        scalars = events.Scalars(name)
        assert [event.step for event in scalars] == list(range(14)), name
        assert [event.value for event in scalars] == pytest.approx(curve(folder / "both", name), rel=1e-6)
    assert "val_loss" in events.Tags()["scalars"]
    (kernels,) = events.Tensors("layer kernels/text_summary")
    assert b"| model.layer_kernels.LayerNorm | torch.nn.LayerNorm(eps=1e-05) |" in kernels.tensor_proto.string_val[0]
    checkpoints = sorted((folder / "both" / "checkpoints").glob("*.ckpt"))
    records = json.loads((folder / "both" / "kernels.json").read_text())
    assert [file.name for file in checkpoints] == ["best.ckpt", "inference-last.ckpt", "last.ckpt"]
    assert all(load_checkpoint(file)["etesian"]["kernels"] == records for file in (checkpoints[0], checkpoints[2]))
    assert torch.load(checkpoints[1], weights_only=False).about["kernels"] == records


def test_the_parts_of_the_validation_loss_make_it_up(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]):
    assert train(*small(tmp_path, "parts", "diagnostics.log.variables=all", "training.max_epochs=1")) == 0
    names = [name for name in rows(folder / "parts")[0] if name.startswith("val_loss/")]
    parts = [curve(folder / "parts", name) for name in names]
    assert len(parts) > 1
    assert [sum(at) / len(at) for at in zip(*parts, strict=True)] == pytest.approx(
        curve(folder / "parts", "val_loss"), rel=1e-5
    )
    capsys.readouterr()
    assert train(*small(tmp_path, "other", "diagnostics.log.variables=[nothing]")) == 2
    assert "where:   diagnostics.log.variables" in capsys.readouterr().err


def test_without_tensorboard_there_is_the_csv_alone(tmp_path: Path, folder: Path):
    assert train(*small(tmp_path, "plain")) == 0
    assert len(curve(folder / "plain")) == 14
    assert not (folder / "plain" / "tensorboard").exists()


def test_a_tensorboard_that_is_not_installed(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert train(*small(tmp_path, "none", "diagnostics.log.tensorboard.enabled=true")) == 2
    said = capsys.readouterr().err
    assert "diagnostics.log.tensorboard.enabled" in said
    assert "pip install 'etesian[tensorboard]'" in said
    assert not folder.exists()
