"""A run that is lost stops with an error, and leaves the last checkpoint that was whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, train

from etesian.training.module import ForecastModule
from small_stores import write_store


@pytest.fixture(autouse=True)
def small(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "waves.zarr")
    return [*SMALL, f"system.input.dataset={tmp_path / 'waves.zarr'}", "training.run_id=lost",
            "diagnostics.scores.enabled=false", "diagnostics.log.interval=1000"]  # fmt: skip


@pytest.mark.parametrize("lost_at", [7, 13], ids=["first after a resume", "last"])
def test_a_lost_loss_leaves_the_last_checkpoint(
    small: list[str], lost_at: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*small, "training.max_epochs=1") == 0
    last = Path("outputs", "lost", "checkpoints", "last.ckpt")
    before = last.read_bytes()
    whole = ForecastModule.rollout_loss

    def losing(self: ForecastModule, x: torch.Tensor, steps: int) -> torch.Tensor:
        lost = self.training and self.trainer.global_step == lost_at
        return whole(self, x, steps) * (float("nan") if lost else 1.0)

    monkeypatch.setattr(ForecastModule, "rollout_loss", losing)
    capsys.readouterr()
    assert train(*small, "training.max_epochs=2", "diagnostics.check_val_every_n_epoch=3") == 2
    assert f"the training loss after step {lost_at + 1} is nan" in capsys.readouterr().err
    assert last.read_bytes() == before


def test_lost_weights_are_not_written(
    small: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of the last step is that before the step: the weights may be lost all the same."""

    def losing(self: ForecastModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 7:
            next(self.forecaster.model.parameters()).data.fill_(float("inf"))

    monkeypatch.setattr(ForecastModule, "on_train_batch_end", losing)
    assert train(*small, "training.max_epochs=1", "diagnostics.check_val_every_n_epoch=2") == 2
    said = capsys.readouterr().err
    assert "after step 7 weights are NaN or infinite: forecaster.model." in said
    assert not list(Path("outputs", "lost", "checkpoints").glob("*"))


def test_a_run_does_not_go_on_with_lost_weights(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*small, "training.max_epochs=1") == 0
    last = Path("outputs", "lost", "checkpoints", "last.ckpt")
    checkpoint = torch.load(last, weights_only=False)
    checkpoint["state_dict"]["forecaster.model.encoder.block.mlp.linear_in.weight"].fill_(float("nan"))
    torch.save(checkpoint, last)
    assert train(*small, "training.max_epochs=2") == 2
    assert "hold NaN or infinity: forecaster.model.encoder.block.mlp.linear_in.weight" in capsys.readouterr().err
