"""``checkpoint describe`` and ``checkpoint export``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_checkpoint
import torch
from runs import environment
from small_checkpoint import states
from torch import nn

from etesian import __version__, cli
from etesian.kernels import families
from etesian.kernels.families import register_family


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    return tmp_path


def test_describe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecaster = small_checkpoint.write(folder / "c.ckpt", "model/layer_kernels=rmsnorm")
    assert cli.main(["checkpoint", "describe", "c.ckpt"]) == 0
    said = capsys.readouterr().out
    count = sum(parameter.numel() for parameter in forecaster.model.parameters())
    texts = [
        "graphtransformer, 16 channels, processor layers: 2", f"{count:,} parameters", "30 steps, epoch 2, 32-true",
        "2 states", "t, insolation, q", "t, q, tp", "14 data, 5 hidden nodes", f"etesian   {__version__}",
        "torch.nn.RMSNorm(eps=1e-06)", "preset rmsnorm",
    ]  # fmt: skip
    for text in texts:
        assert text in said, (text, said)


def test_describe_tells_what_was_compiled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = "{module: torch.nn.GELU, options: {fullgraph: true}},{kernel: LayerNorm}"
    small_checkpoint.write(folder / "c.ckpt", f"model.compile=[{entries}]")
    assert cli.main(["checkpoint", "describe", "c.ckpt"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "compiled torch.nn.GELU (fullgraph)" in said
    assert "preset torch, compiled Activation" in said


def test_describe_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_checkpoint.write(folder / "c.ckpt")
    assert cli.main(["checkpoint", "describe", "--json", "c.ckpt"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["step"], summary["epoch"], summary["contains"]) == (30, 2, "training")
    assert summary["variables"]["forcing"] == ["insolation"]
    assert summary["graph"]["edges"] == {"data to hidden": 30, "hidden to hidden": 15, "hidden to data": 28}
    assert {record["slot"]: record["target"] for record in summary["kernels"]}["LayerNorm"] == "torch.nn.LayerNorm"


def test_describe_needs_neither_lightning_nor_hydra(folder: Path) -> None:
    small_checkpoint.write(folder / "c.ckpt")
    code = (
        "import sys; from etesian import cli; assert cli.main(['checkpoint', 'describe', 'c.ckpt']) == 0\n"
        "assert not {'pytorch_lightning', 'hydra', 'matplotlib', 'anemoi.datasets'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_export_and_describe_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = small_checkpoint.write(folder / "c.ckpt")
    assert cli.main(["checkpoint", "export", "c.ckpt", "-o", "out.ckpt"]) == 0
    said = capsys.readouterr().out
    assert "the kernels are those of the checkpoint" in said
    assert said.rstrip().endswith("wrote out.ckpt")
    loaded = torch.load("out.ckpt", weights_only=False)
    assert isinstance(loaded, nn.Module)
    assert torch.equal(loaded.rollout(states(), 2), original.rollout(states(), 2))
    assert cli.main(["checkpoint", "describe", "out.ckpt"]) == 0
    said = capsys.readouterr().out
    assert "for inference" in said
    assert "from c.ckpt" in said
    assert cli.main(["checkpoint", "describe", "--json", "out.ckpt"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["exported"]["checkpoint"] == "c.ckpt"
    assert summary["model"]["parameters"] == sum(parameter.numel() for parameter in original.model.parameters())


def test_export_says_what_was_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A preset of one's own, of the current folder."""
    presets = folder / "model" / "layer_kernels"
    presets.mkdir(parents=True)
    presets.joinpath("mine.yaml").write_text("LayerNorm: {_target_: etesian.kernels.norms.AutocastLayerNorm}\n")
    small_checkpoint.write(folder / "c.ckpt")
    assert cli.main(["checkpoint", "export", "c.ckpt", "--layer-kernels", "mine", "-o", "out.ckpt"]) == 0
    said = capsys.readouterr().out
    assert "model.LayerNorm: torch.nn.LayerNorm(eps=1e-05) -> etesian.kernels.norms.AutocastLayerNorm" in said
    assert "whole model on random numbers: 0.0e+00 apart, 1e-04 allowed" in said


def test_export_says_why_the_model_was_not_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_checkpoint.write(
        folder / "c.ckpt", "model.layer_kernels.Activation._target_=faulty_kernels.FailsAsActivation"
    )
    register_family("faulty_kernels.FailsAsActivation", "gelu")
    checkpoint = torch.load("c.ckpt", weights_only=False)
    for record in checkpoint["etesian"]["kernels"]:
        if record["slot"] == "Activation":
            record |= {"family": "gelu", "constants": {"approximate": "none"}}
    torch.save(checkpoint, "c.ckpt")
    assert cli.main(["checkpoint", "export", "c.ckpt", "-o", "out.ckpt"]) == 0
    said = capsys.readouterr().out
    assert "compared with etesian.kernels.formulas.GELU, as faulty_kernels.FailsAsActivation does not run here" in said
    assert "the whole model was not compared: slot Activation" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe", "no.ckpt"], "no.ckpt does not exist"),
        (["describe", "othr.ckpt"], "did you mean 'other.ckpt'"),
        (["describe", "nowhere/c.ckpt"], "name a .ckpt file that a run wrote"),
        (["describe", "run"], "mend:    run/checkpoints/best.ckpt"),
        (["export", "run/checkpoints", "-o", "out.ckpt"], "mend:    run/checkpoints/best.ckpt"),
        (["describe", "empty"], "name a .ckpt file that a run wrote"),
        (["describe", "text.ckpt"], "can't be read as a checkpoint"),
        (["describe", "other.ckpt"], "is not a checkpoint of a run"),
        (["describe", "module.ckpt"], "holds a Linear that tells nothing of itself"),
        (["describe"], "the following arguments are required: FILE"),
        (["describe", "c.ckpt", "--jsn"], "did you mean '--json'?"),
        (["export", "c.ckpt"], "the following arguments are required: -o/--output"),
        (["export", "no.ckpt", "-o", "out.ckpt"], "no.ckpt does not exist"),
        (["export", "c.ckpt", "-o", "text.ckpt"], "text.ckpt is there already"),
        (["export", "c.ckpt", "-o", "no/out.ckpt"], "the folder no does not exist"),
        (["export", "c.ckpt", "-o", "c.ckpt", "--force"], "is the checkpoint itself"),
        (["export", "c.ckpt", "-o", "out.ckpt", "--layer-kernels", "rmsnorn"], "'rmsnorm'"),
        (["export", "c.ckpt", "-o", "out.ckpt", "--layer-kernels", "rmsnorm"], "different mathematics"),
        (["export", "c.ckpt", "-o", "out.ckpt", "--layer-kernels", "liger"], "the library is missing"),
        (["export", "c.ckpt", "-o", "out.ckpt", "--device", "gpu0"], "unknown device 'gpu0'"),
        (["export", "c.ckpt", "-o", "out.ckpt", "--config-dir", "nowhere", "--layer-kernels", "rmsnorm"], "nowhere"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    small_checkpoint.write(folder / "c.ckpt")
    (folder / "empty").mkdir()
    (folder / "run" / "checkpoints").mkdir(parents=True)
    (folder / "run" / "checkpoints" / "best.ckpt").touch()
    (folder / "text.ckpt").write_text("text")
    torch.save({"state_dict": {}}, "other.ckpt")
    torch.save(nn.Linear(1, 1), "module.ckpt")
    assert cli.main(["checkpoint", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out.ckpt").exists()


@pytest.mark.parametrize("arguments", ["'describe', 'no.ckpt'", "'export', 'no.ckpt', '-o', 'out.ckpt'"])
def test_a_wrong_path_is_told_before_anything_is_imported(folder: Path, arguments: str) -> None:
    code = (
        f"import sys; from etesian import cli; assert cli.main(['checkpoint', {arguments}]) == 2\n"
        "assert not {'torch', 'numpy', 'pydantic', 'hydra'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no.ckpt does not exist" in done.stderr


def test_force_replaces(folder: Path) -> None:
    small_checkpoint.write(folder / "c.ckpt")
    (folder / "out.ckpt").write_text("text")
    assert cli.main(["checkpoint", "export", "c.ckpt", "-o", "out.ckpt", "--force"]) == 0
    assert isinstance(torch.load("out.ckpt", weights_only=False), nn.Module)
