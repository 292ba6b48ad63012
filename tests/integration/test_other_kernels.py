"""Going on from a checkpoint under other layer kernels than those that made its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from runs import SMALL, losses, train
from torch import Tensor, nn

from etesian.kernels import families
from etesian.kernels.families import register_family
from small_stores import write_store

KEY = "model.layer_kernels.LayerNorm"
AUTOCAST = f"{KEY}._target_=etesian.kernels.norms.AutocastLayerNorm"
ALLOWED = "training.allow_other_kernels=true"


class TwiceNorm(nn.LayerNorm):
    """Returns twice the norm."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a run named first was trained."""
    folder = tmp_path_factory.mktemp("first")
    write_store(folder / "waves.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ETESIAN_CACHE", str(folder / "cache"))
        assert train(*small(folder), "training.run_id=first", "training.max_epochs=1") == 0
    return folder


class OwnNorm(nn.LayerNorm):
    def __init__(self, num_channels: int, eps: float = 1e-3) -> None:
        super().__init__(num_channels, eps)


def small(folder: Path) -> list[str]:
    return [*SMALL, f"system.input.dataset={folder}/waves.zarr", "diagnostics.scores.enabled=false"]


@pytest.fixture
def go_on(first: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """Return a function that forks the first run under other options."""
    monkeypatch.chdir(first)
    monkeypatch.setenv("ETESIAN_CACHE", str(first / "cache"))
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_CONSTANTS", dict(families._CONSTANTS))
    name = request.node.name.replace("[", "-").replace("]", "").replace(" ", "_")

    def fork(*options: str, run_id: str = name) -> int:
        return train(*small(first), f"training.run_id={run_id}", "training.fork_run_id=first", *options)

    return fork


def test_other_kernels_have_to_be_asked_for(go_on, capsys: pytest.CaptureFixture[str]) -> None:
    assert go_on(AUTOCAST) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert "made by torch.nn.LayerNorm(eps=1e-05) in slot LayerNorm of the model" in said
    assert "etesian.kernels.norms.AutocastLayerNorm(eps=1e-05), of the same family 'layer_norm'" in said
    assert f"where:   {KEY}\n" in said
    back = f"{KEY}={{_target_:torch.nn.LayerNorm,eps:1e-05,elementwise_affine:true,bias:true}}"
    assert f"{ALLOWED} to go on all the same, or '{back}'" in said


def test_within_a_family_it_is_allowed_after_a_check(go_on, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go_on(AUTOCAST, ALLOWED, "training.max_epochs=2") == 0
    said = capsys.readouterr().out
    assert "other kernels: model.LayerNorm: torch.nn.LayerNorm(eps=1e-05) -> " in said
    assert "apart forward" in said
    assert "1e-05 allowed" in said
    new = first / "outputs" / "test_within_a_family_it_is_allowed_after_a_check"
    checkpoint = torch.load(new / "checkpoints" / "last.ckpt", weights_only=False)
    for records in (checkpoint["etesian"]["kernels"], json.loads((new / "kernels.json").read_text())):
        assert next(r["target"] for r in records if r["slot"] == "LayerNorm").endswith("AutocastLayerNorm")


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (["model/layer_kernels=rmsnorm"], ["different mathematics: layer_norm ("]),
        ([f"{KEY}.eps=1e-6"], ["another constant: eps is 1e-05 there and 1e-06 here"]),
        (["model.layer_kernels.Activation._target_=torch.nn.SiLU", f"{KEY}.eps=1e-6"], ["gelu", "eps is"]),
        (["+model.decoder.layer_kernels.Activation={_target_: torch.nn.ReLU}"], ["slot Activation of the decoder"]),
        ([f"{KEY}._target_=test_other_kernels.TwiceNorm"], ["custom:test_other_kernels.TwiceNorm"]),
    ],
    ids=["family", "eps", "two", "component", "custom"],
)
def test_across_families_it_never_is(
    go_on, options: list[str], reasons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert go_on(ALLOWED, *options) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == len(reasons)
    for reason in reasons:
        assert reason in said


def test_a_kernel_that_lies_about_its_family(go_on, capsys: pytest.CaptureFixture[str]) -> None:
    register_family("test_other_kernels.TwiceNorm", "layer_norm")
    assert go_on(f"{KEY}._target_=test_other_kernels.TwiceNorm", ALLOWED) == 2
    assert "do not compute the same" in capsys.readouterr().err


def test_what_is_written_otherwise_and_computes_the_same_is_no_difference(
    go_on, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defaults, origin and a preset's name change nothing."""
    assert go_on(f"~{KEY}.eps", "+model.layer_kernels.Activation.approximate=none", "training.max_epochs=2") == 0
    assert "other kernels" not in capsys.readouterr().out


def test_a_resumed_run_is_asked_too(go_on, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["training.fork_run_id=null", "training.max_epochs=2"]
    assert go_on("training.max_epochs=1", "training.load_weights_only=true", run_id="again") == 0
    capsys.readouterr()
    assert go_on(*own, AUTOCAST, run_id="again") == 2
    assert "made by torch.nn.LayerNorm" in capsys.readouterr().err
    assert go_on(*own, AUTOCAST, ALLOWED, run_id="again") == 0
    assert "resumed from last.ckpt" in capsys.readouterr().out
    assert len(losses(first / "outputs" / "again")) > len(losses(first / "outputs" / "first"))


def test_another_version_of_a_library_is_said(go_on, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = torch.load(first / "outputs/first/checkpoints/last.ckpt", weights_only=False)
    for record in checkpoint["etesian"]["kernels"]:
        if record["library"] == "torch":
            record["version"] = "0.1"
    torch.save(checkpoint, first / "older.ckpt")
    assert go_on(f"training.fork_run_id={first}/older.ckpt", "training.load_weights_only=true",
                 "training.max_epochs=1") == 0  # fmt: skip
    assert f"since the checkpoint: torch 0.1 -> {torch.__version__}" in capsys.readouterr().out


def test_a_default_that_changed_since_is_refused(
    go_on, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run under a kernel of the user's goes on only while its own defaults stay."""
    path = "test_other_kernels.OwnNorm"
    register_family(path, "layer_norm")
    own = ["training.fork_run_id=null", f"{KEY}._target_={path}", f"~{KEY}.eps"]
    assert go_on(*own, "training.max_epochs=1", run_id="own") == 0
    monkeypatch.setattr(OwnNorm.__init__, "__defaults__", (1e-2,))
    capsys.readouterr()
    assert go_on(*own, ALLOWED, "training.max_epochs=2", run_id="own") == 2
    said = capsys.readouterr().err
    assert f"another constant: eps is 0.001 there and 0.01 here, as a default of {path} has changed since" in said
    back = f"'{KEY}={{_target_:{path},eps:0.001}}'"
    assert f"mend:    {back}\n" in said
    assert go_on(*own[:2], back.strip("'"), "training.max_epochs=2", run_id="own") == 0
