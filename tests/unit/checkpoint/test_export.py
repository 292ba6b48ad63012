"""Export for inference: what replaces what, what is refused, and that the forecasts are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_checkpoint
import torch
from small_checkpoint import states
from torch import Tensor, nn

from etesian.checkpoint.export import export, write
from etesian.checkpoint.paths import check_output
from etesian.commands import common
from etesian.errors import UserError
from etesian.inference.forecaster import Forecaster
from etesian.kernels import families
from etesian.kernels.families import register_family

CPU = torch.device("cpu")
NORM = "model.layer_kernels.LayerNorm"
ALIKE = "test_export.SlowRMSNorm"


class SlowRMSNorm(nn.Module):
    """An RMS norm that claims to be nothing else."""

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Lying(SlowRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 1.1 * super().forward(x)


class NeedsDriver(SlowRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("0 active drivers")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_CONSTANTS", dict(families._CONSTANTS))
    common.register_kinds()
    return tmp_path


def norms_of(forecaster: Forecaster) -> set[str]:
    return {type(module).__name__ for name, module in forecaster.named_modules() if name.endswith("norm_mlp")}


def test_a_plain_model_stays_as_it_is(folder: Path) -> None:
    original = small_checkpoint.write(folder / "c.ckpt", "model.processor.gradient_checkpointing=true")
    exported = export(folder / "c.ckpt", "torch", None, CPU)
    assert (exported.parities, exported.model, exported.why_not) == ([], None, "")
    assert norms_of(exported.forecaster) == {"LayerNorm"}
    write(exported, folder / "out.pt")
    loaded = torch.load(folder / "out.pt", weights_only=False)
    assert isinstance(loaded, Forecaster)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert not any("forward" in vars(module) for module in loaded.modules()), "nothing is wrapped"
    assert torch.equal(loaded.rollout(states(), 2), original.rollout(states(), 2))


def test_a_kernel_gives_place_to_the_plain_one_of_its_family(folder: Path) -> None:
    register_family(ALIKE, "rms_norm")
    original = small_checkpoint.write(folder / "c.ckpt", f"{NORM}={{_target_: {ALIKE}, eps: 1e-3}}")
    exported = export(folder / "c.ckpt", "torch", None, CPU)
    assert norms_of(exported.forecaster) == {"RMSNorm"}
    assert exported.forecaster.get_submodule("model.encoder.block.norm_mlp").eps == 1e-3
    (parity,) = exported.parities
    assert parity.passed
    assert exported.model is not None
    assert exported.model < 1e-5
    difference = exported.forecaster.rollout(states(), 3) - original.rollout(states(), 3)
    assert float(difference.abs().max()) < 1e-4
    about = exported.forecaster.about["exported"]
    assert (about["step"], about["epoch"], about["deviation"]) == (30, 2, exported.model)
    assert next(r for r in about["kernels"] if r["slot"] == "LayerNorm")["target"] == ALIKE
    assert about["parity"][0]["precision"] == "64-true"


def test_a_transformer(folder: Path) -> None:
    reference = "etesian.kernels.attention.reference.ReferenceAttention"
    original = small_checkpoint.write(folder / "c.ckpt", "model=transformer", "model.processor.window_size=2")
    exported = export(folder / "c.ckpt", "torch", None, CPU)
    assert torch.equal(exported.forecaster.rollout(states(), 2), original.rollout(states(), 2))
    exported = export(folder / "c.ckpt", "mine", {"Attention": {"_target_": reference}}, CPU)
    assert exported.parities[0].difference.slot == "Attention"
    torch.testing.assert_close(exported.forecaster.rollout(states(), 2), original.rollout(states(), 2))


def test_a_component_keeps_its_own_family(folder: Path) -> None:
    own = "+model.decoder.layer_kernels.LayerNorm={_target_: torch.nn.RMSNorm, eps: 1e-6}"
    small_checkpoint.write(folder / "c.ckpt", own)
    forecaster = export(folder / "c.ckpt", "torch", None, CPU).forecaster
    assert type(forecaster.get_submodule("model.decoder.block.norm_mlp")) is nn.RMSNorm
    assert type(forecaster.get_submodule("model.encoder.block.norm_mlp")) is nn.LayerNorm


def test_a_mapping_of_ones_own(folder: Path) -> None:
    register_family(ALIKE, "rms_norm")
    small_checkpoint.write(folder / "c.ckpt", "model/layer_kernels=rmsnorm")
    exported = export(folder / "c.ckpt", "mine", {"LayerNorm": {"_target_": ALIKE, "_compile_": True}}, CPU)
    assert norms_of(exported.forecaster) == {"SlowRMSNorm"}


@pytest.mark.parametrize(
    ("trained", "mapping", "reason"),
    [
        ("rmsnorm", {}, "different mathematics: rms_norm (x"),
        ("torch", {"LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-6}}, "eps is 1e-05 there and 1e-06 here"),
        ("torch", {"Activation": {"_target_": "torch.nn.GELU", "approximate": "tanh"}}, "approximate is 'none' there"),
    ],
)
def test_other_mathematics_is_refused(folder: Path, trained: str, mapping: dict, reason: str) -> None:
    small_checkpoint.write(folder / "c.ckpt", f"model/layer_kernels={trained}")
    with pytest.raises(UserError) as caught:
        export(folder / "c.ckpt", "mine", mapping, CPU)
    (problem,) = caught.value.problems
    assert reason in problem.what
    assert problem.mend == "--layer-kernels torch"


def test_a_kernel_of_no_family_has_no_plain_one(folder: Path) -> None:
    small_checkpoint.write(folder / "c.ckpt", f"{NORM}={{_target_: {ALIKE}}}")
    with pytest.raises(UserError, match=f"family 'custom:{ALIKE}' has no kernel in plain PyTorch") as caught:
        export(folder / "c.ckpt", "torch", None, CPU)
    assert caught.value.problems[0].where == NORM


def test_a_kernel_that_lies_about_its_family(folder: Path) -> None:
    register_family("test_export.Lying", "rms_norm")
    small_checkpoint.write(folder / "c.ckpt", f"{NORM}={{_target_: test_export.Lying}}")
    with pytest.raises(UserError, match="do not compute the same"):
        export(folder / "c.ckpt", "torch", None, CPU)


def test_a_kernel_that_does_not_run_here(folder: Path) -> None:
    """The formula of the family is compared in its place."""
    register_family("test_export.NeedsDriver", "rms_norm")
    small_checkpoint.write(folder / "c.ckpt", f"{NORM}={{_target_: test_export.NeedsDriver}}")
    exported = export(folder / "c.ckpt", "torch", None, CPU)
    assert exported.model is None
    assert "0 active drivers" in exported.why_not
    assert exported.parities[0].against.startswith("etesian.kernels.formulas.RMSNorm, as test_export.NeedsDriver")


def test_an_exported_model_that_is_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_family("test_export.Lying", "rms_norm")
    small_checkpoint.write(folder / "c.ckpt", f"{NORM}={{_target_: test_export.Lying}}")
    monkeypatch.setattr("etesian.checkpoint.export.check_parity", lambda *_: [])
    with pytest.raises(UserError, match="apart from the one that was trained") as caught:
        export(folder / "c.ckpt", "torch", None, CPU)
    assert caught.value.problems[0].allowed == "at most 1e-04 apart"


def test_double_precision_stays(folder: Path) -> None:
    original = small_checkpoint.write(folder / "c.ckpt", "training.precision=64-true")
    forecaster = export(folder / "c.ckpt", "torch", None, CPU).forecaster
    assert {value.dtype for value in forecaster.parameters()} == {torch.float64}
    assert torch.equal(forecaster.rollout(states().double(), 2), original.rollout(states().double(), 2))


def test_states_that_libraries_add_are_left_out(folder: Path) -> None:
    checkpoint, _ = small_checkpoint.make()
    checkpoint["state_dict"]["forecaster.model.encoder.embed_source._extra_state"] = torch.zeros(3)
    checkpoint["state_dict"]["loss.weights"] = torch.zeros(3)
    torch.save(checkpoint, folder / "c.ckpt")
    export(folder / "c.ckpt", "torch", None, CPU)


@pytest.mark.parametrize("options", [["model/layer_kernels=compiled_rmsnorm"], ["model/compile=blocks"]])
def test_compilation_is_left_out(folder: Path, options: list[str]) -> None:
    small_checkpoint.write(folder / "c.ckpt", *options)
    exported = export(folder / "c.ckpt", "torch", None, CPU)
    assert all(record.compile is None for record in exported.kernels)
    assert not any("forward" in vars(module) for module in exported.forecaster.modules())
    section = exported.forecaster.about["config"]["model"]
    assert section["compile"] or "_compile_" in section["layer_kernels"]["LayerNorm"], "it says what was trained"


def test_weights_that_do_not_fit(folder: Path) -> None:
    checkpoint, _ = small_checkpoint.make()
    del checkpoint["state_dict"]["forecaster.model.decoder.output.bias"]
    torch.save(checkpoint, folder / "c.ckpt")
    with pytest.raises(UserError, match=r"model\.decoder\.output\.bias is missing"):
        export(folder / "c.ckpt", "torch", None, CPU)


def test_where_an_export_may_be_written(folder: Path) -> None:
    source, other = folder / "c.ckpt", folder / "other.ckpt"
    source.touch()
    check_output(other, source, force=False)
    other.touch()
    check_output(other, source, force=True)
    for output, force, reason in (
        (folder / "no" / "out.ckpt", False, "the folder .*no does not exist"),
        (folder, True, "is a folder"),
        (other, False, "is there already"),
        (source, True, "is the checkpoint itself"),
    ):
        with pytest.raises(UserError, match=reason) as caught:
            check_output(output, source, force=force)
        assert caught.value.problems[0].where == "--output"
