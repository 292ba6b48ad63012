"""Short runs of ``model=transformer`` through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import SMALL, curve, train, weights

from etesian import cli
from small_stores import write_store


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    store = write_store(tmp_path / "waves.zarr")
    return [
        *SMALL, "model=transformer", f"system.input.dataset={store}", "training.run_id=run",
        "diagnostics.scores.enabled=false", "training.max_epochs=null", "training.max_steps=20",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "own",
    [
        ["model.processor.window_size=5", "model.processor.gradient_checkpointing=true"],
        ["model.processor.window_size=null", "model.processor.qk_norm=true"],
    ],
    ids=["window", "all"],
)
def test_the_loss_falls_and_the_run_says_what_it_ran(options: list[str], own: list[str]) -> None:
    assert train(*options, *own) == 0
    losses = curve(Path("outputs/run"))
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    recorded = {entry["slot"]: entry for entry in json.loads(Path("outputs/run/kernels.json").read_text())}
    assert recorded["Attention"]["target"] == "etesian.kernels.attention.sdpa.ScaledDotProductAttention"
    assert recorded["Attention"]["family"] == "attention"
    assert recorded["Attention"]["note"] == "used in processor"
    assert not [name for name in weights(Path("outputs/run")) if "order" in name or "processor.edges" in name]


def test_kernels_check_runs_the_attention_of_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    flex = "model.layer_kernels.Attention._target_=etesian.kernels.attention.flex.FlexAttention"
    assert cli.main(["kernels", "check", flex]) == 0  # the default model has no such attention
    assert "Attention" in capsys.readouterr().out
    assert cli.main(["kernels", "check", "model=transformer", flex]) == 2
    said = capsys.readouterr().err
    assert "slot Attention" in said
    assert "does not run on cpu" in said
    assert cli.main(["kernels", "check", "model=transformer", "model.processor.window_size=3"]) == 0
