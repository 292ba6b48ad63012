"""Averaged weights, frozen modules and early stopping, in runs that are gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import SMALL, assert_same_run, losses, run, train, weights

from etesian.checkpoint.read import load_checkpoint
from etesian.training.averaging import TRAINED
from small_stores import write_store

CHOICES = ["training.ema={decay: 0.6, start_step: 2}", "training.freeze=[encoder,processor.blocks.0.mlp]",
           "training.early_stopping={patience: 2}"]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "waves.zarr")
    return tmp_path / "outputs"


def small(run_id: str, *options: str) -> list[str]:
    every = "diagnostics.checkpoint.every_n_train_steps={save_frequency: 4, num_models_saved: -1}"
    return [*SMALL, "system.input.dataset=waves.zarr", f"training.run_id={run_id}", "diagnostics.scores.enabled=false",
            every, *options]  # fmt: skip


def parts(checkpoint: dict) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    return checkpoint["state_dict"], checkpoint[TRAINED]


@pytest.mark.slow
def test_averages_frozen_parts_and_counts_go_on_exactly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*small("whole", *CHOICES)) == 0
    said = capsys.readouterr().out
    assert "frozen: encoder, processor.blocks.0.mlp (" in said
    assert "averaged weights: decay 0.6 after each step, from step 3 on" in said
    assert "stops early after 2 validations without a val_loss that is lower" in said
    checkpoints = folder / "whole" / "checkpoints"
    early, late = (load_checkpoint(next(checkpoints.glob(f"*step_{step:06d}.ckpt"))) for step in (4, 12))
    last = load_checkpoint(checkpoints / "last.ckpt")
    assert (early["epoch"], late["epoch"]) == (0, 1)
    for name, weight in late["state_dict"].items():
        frozen = ".encoder." in name or ".blocks.0.mlp." in name
        if frozen:
            assert name not in late[TRAINED]
            assert torch.equal(weight, early["state_dict"][name]), name
        elif name in late[TRAINED]:
            assert not torch.equal(late[TRAINED][name], early[TRAINED][name]), name
            assert not torch.equal(late[TRAINED][name], weight), name
    assert len(last["optimizer_states"][0]["state"]) == len(last[TRAINED])
    exported = torch.load(checkpoints / "inference-last.ckpt", weights_only=False).state_dict()
    stored = {name.removeprefix("forecaster."): value for name, value in last["state_dict"].items()}
    common = [name for name in exported if name in stored]
    assert len(common) >= len(last[TRAINED])
    assert all(torch.equal(exported[name], stored[name]) for name in common)

    for step in (4, 12):
        name = f"from-{step}"
        shutil.copytree(folder / "whole", folder / name)
        kept = next(checkpoints.glob(f"*step_{step:06d}.ckpt"))
        shutil.copy(kept, folder / name / "checkpoints" / "last.ckpt")
        assert train(*small(name, *CHOICES)) == 0
        assert f"goes on at step {step}" in capsys.readouterr().out
        assert_same_run(folder / "whole", folder / name)
        resumed = load_checkpoint(folder / name / "checkpoints" / "last.ckpt")
        for one, two in zip(parts(last), parts(resumed), strict=True):
            assert all(torch.equal(value, two[key]) for key, value in one.items())
        counts = [next(v for k, v in c["callbacks"].items() if k.startswith("StopEarly")) for c in (last, resumed)]
        assert counts[0] == counts[1]

    assert train(*small("whole", *CHOICES[1:], "training.max_epochs=3")) == 2
    assert "is of a run that averages its weights, and training.ema is null" in capsys.readouterr().err
    assert train(*small("whole", CHOICES[0], "training.freeze=[encoder]", "training.max_epochs=3")) == 2
    assert "the state of its optimiser is for other parameters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_no_longer_gets_better_ends_and_stays_ended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["training.max_epochs=5", "training.early_stopping={patience: 1, min_delta: 1000.0}"]
    assert train(*small("early", *options)) == 0
    assert len(losses(folder / "early")) == 14
    said = "Stopped early at step 14: in 1 validation val_loss has not fallen by more than 1000 below "
    assert said in capsys.readouterr().out
    assert train(*small("early", *options)) == 0
    assert said in capsys.readouterr().out
    assert len(losses(folder / "early")) == 14
    assert train(*small("early", "training.max_epochs=5", "training.early_stopping={patience: 2, min_delta: 1e3}")) == 0
    assert len(losses(folder / "early")) == 21
    assert "Stopped early at step 21: in 2 validations" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_average_freeze_and_stop_together(tmp_path: Path, folder: Path) -> None:
    early = "training.early_stopping={patience: 1, min_delta: 1000.0}"
    two = ["system.hardware.num_gpus_per_node=2", "dataloader.batch_size.training=1", "training.max_epochs=5"]
    done = run(tmp_path, tmp_path / "cache", *small("two", *CHOICES[:2], early, *two))
    assert done.stdout.count("Stopped early at step ") == 1
    assert done.stderr == ""
    last = load_checkpoint(folder / "two" / "checkpoints" / "last.ckpt")
    assert last["epoch"] == 1
    assert all(not torch.equal(last["state_dict"][name], weight) for name, weight in last[TRAINED].items())


@pytest.mark.slow
def test_a_run_takes_the_weights_of_one_for_other_variables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*small("base", "training.max_epochs=1")) == 0
    write_store(folder.parent / "other.zarr", variables=("rain", "v", "t", "forcing"))
    other = small("other", "system.input.dataset=other.zarr", "training.transfer_from=base", "training.max_epochs=1")
    capsys.readouterr()
    assert train(*other) == 2
    said = capsys.readouterr().err
    assert "u has no place in encoder.embed_source.weight" in said
    assert "v is new in encoder.embed_source.weight" in said
    assert train(*other, "training.transfer_allow=[u,v]", "training.optimization.lr=1e-12",
                 "training.optimization.lr_scheduler.lr_min=0") == 0  # fmt: skip
    said = " ".join(capsys.readouterr().out.split())
    assert "new, with weights of" in said
    assert "tensors taken as they are" in said
    report = json.loads((folder / "other" / "transfer.json").read_text())
    how = {entry["name"]: entry["how"] for entry in report["tensors"]}
    assert how["encoder.embed_source.weight"] == "by variable"
    assert how["processor.blocks.0.query.weight"] == "taken"
    name = "forecaster.model.processor.blocks.0.query.weight"
    torch.testing.assert_close(weights(folder / "other")[name], weights(folder / "base")[name], rtol=0, atol=1e-9)
    assert train(*other, "training.transfer_allow=[u,v]", "training.max_epochs=2") == 0
    assert "resumed from last.ckpt" in " ".join(capsys.readouterr().out.split())


def test_a_module_that_is_not_there_is_said_before_the_first_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*small("none", "training.freeze=[encodr]")) == 2
    said = capsys.readouterr().err
    assert "the model has no module 'encodr'" in said
    assert "did you mean 'encoder'" in said
    assert not (folder / "none" / "checkpoints" / "last.ckpt").exists()
