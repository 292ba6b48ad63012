"""Trained with a library's kernels, run where that library is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_site import run as run_with_kernels
from runs import SMALL, environment

from etesian import cli
from small_stores import write_store

LIGER = "liger_kernel.transformers.rms_norm.LigerRMSNorm"

BLOCKED = ("liger_kernel", "triton", "transformer_engine", "pytorch_lightning", "lightning_fabric", "hydra",
           "omegaconf", "anemoi", "matplotlib")  # fmt: skip
"""What an exported checkpoint has to do without."""

FORECAST = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import torch
forecaster = torch.load("inference.ckpt", weights_only=False)
assert isinstance(forecaster, torch.nn.Module)
torch.save(forecaster.rollout(torch.load("states.pt"), 3), "exported.pt")
libraries = {{type(module).__module__.partition(".")[0] for module in forecaster.modules()}}
assert libraries <= {{"etesian", "torch"}}, libraries
"""

TRAINED = """
from pathlib import Path
import small_checkpoint, torch
norm = "model.layer_kernels.LayerNorm={{_target_: {liger}, eps: 1e-4}}"
forecaster = small_checkpoint.write(Path("liger.ckpt"), norm)
assert type(forecaster.model.decoder.norm_output).__name__ == "LigerRMSNorm"
states = small_checkpoint.states()
torch.save(states, "states.pt")
torch.save(forecaster.rollout(states, 3), "original.pt")
"""
"""Stands in for training: a checkpoint of random weights, and what its own kernels forecast."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint liger.ckpt of Liger's RMS norm."""
    folder = tmp_path_factory.mktemp("liger")
    (folder / "trained.py").write_text(TRAINED.format(liger=LIGER))
    run_with_kernels("trained.py", folder=folder)
    return folder


def without(folder: Path, *program: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that can't import the kernel libraries."""
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment(folder / "cache"), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_an_exported_checkpoint_runs_without_the_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["checkpoint", "export", "liger.ckpt", "-o", "inference.ckpt"]) == 0
    said = capsys.readouterr().out
    assert f"{LIGER}(eps=0.0001) -> torch.nn.RMSNorm(eps=0.0001)" in said
    assert "compared with etesian.kernels.formulas.RMSNorm, as liger_kernel can't be imported here" in said
    assert "the whole model was not compared: slot LayerNorm" in said
    without(folder, "-c", FORECAST.format(blocked=BLOCKED))
    original, exported = torch.load("original.pt"), torch.load("exported.pt")
    torch.testing.assert_close(exported, original, rtol=1e-5, atol=1e-5)
    assert not torch.equal(exported, original), "alike to the last bit: was Liger's kernel run at all?"


def test_another_family_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert (
        cli.main(["checkpoint", "export", "liger.ckpt", "-o", "no.ckpt", "--layer-kernels", "layernorm_no_params"]) == 2
    )
    assert "different mathematics: rms_norm (x / sqrt(mean(x^2) + eps)" in capsys.readouterr().err
    assert not Path("no.ckpt").exists()


@pytest.mark.slow
def test_where_the_library_runs_the_whole_model_is_compared(folder: Path) -> None:
    done = run_with_kernels("etesian", "checkpoint", "export", "liger.ckpt", "-o", "compared.ckpt", folder=folder)
    assert "whole model on random numbers: " in done.stdout
    assert "compared with" not in done.stdout


@pytest.mark.slow
def test_training_goes_on_without_the_library_when_asked(tmp_path: Path) -> None:
    """The formula of the family stands in for the kernel that is not there."""
    write_store(tmp_path / "waves.zarr")
    options = [
        *SMALL, "training.max_epochs=null", "system.input.dataset=waves.zarr",
        "diagnostics.scores.enabled=false",
    ]  # fmt: skip
    run_with_kernels(
        "etesian", "train", *options, "training.run_id=liger", "training.max_steps=1",
        f"model.layer_kernels.LayerNorm={{_target_: {LIGER}, eps: 1e-4}}",
        folder=tmp_path, ETESIAN_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    options += [
        "training.run_id=torch",
        "training.fork_run_id=liger",
        "training.max_steps=2",
        "model.layer_kernels.LayerNorm={_target_: torch.nn.RMSNorm, eps: 1e-4}",
    ]
    done = without(tmp_path, "-m", "etesian", "train", *options, check=False)
    assert done.returncode == 2
    assert "training.allow_other_kernels=true" in done.stderr
    done = without(tmp_path, "-m", "etesian", "train", *options, "training.allow_other_kernels=true")
    assert "compared with etesian.kernels.formulas.RMSNorm, as liger_kernel can't be imported here" in done.stdout
