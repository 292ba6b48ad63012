"""The comparison of a checkpoint's kernels with those of a config."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_model import make_settings

from etesian.checkpoint.mapping import KEY, check_mapping, library_changes, refuse
from etesian.compose import compose
from etesian.errors import UserError
from etesian.kernels.interchange import Difference
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import ComponentKernels, resolve_kernels

CPU = torch.device("cpu")
SOURCE = Path("c.ckpt")
LIGER = "liger_kernel.transformers.rms_norm.LigerRMSNorm"


@pytest.fixture
def rms_norms() -> tuple[ComponentKernels, object]:
    settings = make_settings(layer_kernels={"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}})
    return resolve_kernels(settings, preset=None, overrides=[]), settings


def stored(kernels: ComponentKernels, slot: str, **changes: object) -> list[KernelRecord]:
    return [replace(record, **changes) if record.slot == slot else record for record in kernels.records]


def test_the_same_kernels(rms_norms) -> None:
    kernels, settings = rms_norms
    assert check_mapping(SOURCE, kernels.records, kernels, settings, CPU, allowed=False) == []
    other = stored(kernels, "LayerNorm", version="9.9", origin="override", note="", library="other")
    assert check_mapping(SOURCE, other, kernels, settings, CPU, allowed=False) == []


def test_other_kernels_of_a_family(rms_norms) -> None:
    kernels, settings = rms_norms
    other = stored(kernels, "LayerNorm", target=LIGER)
    with pytest.raises(UserError) as caught:
        check_mapping(SOURCE, other, kernels, settings, CPU, allowed=False)
    (problem,) = caught.value.problems
    assert problem.where == "model.layer_kernels.LayerNorm"
    assert f"made by {LIGER}(eps=1e-06) in slot LayerNorm of the model" in problem.what
    assert f"{KEY}=true" in str(problem.mend)
    (parity,) = check_mapping(SOURCE, other, kernels, settings, CPU, allowed=True)
    assert parity.passed
    assert parity.against.startswith("etesian.kernels.formulas.RMSNorm, as ")


def test_every_slot_is_named_in_one_error(rms_norms) -> None:
    kernels, settings = rms_norms
    other = stored(kernels, "LayerNorm", target="torch.nn.LayerNorm", family="layer_norm", constants={})
    other = [replace(r, target="torch.nn.SiLU", family="silu") if r.slot == "Activation" else r for r in other]
    for allowed in (False, True):
        with pytest.raises(UserError) as caught:
            check_mapping(SOURCE, other, kernels, settings, CPU, allowed=allowed)
        assert [problem.where for problem in caught.value.problems] == [
            "model.layer_kernels.LayerNorm", "model.layer_kernels.Activation",
        ]  # fmt: skip
        assert all("different mathematics" in problem.what for problem in caught.value.problems)


def test_the_way_back_of_a_component(rms_norms) -> None:
    kernels, settings = rms_norms
    own = KernelRecord("LayerNorm", "decoder", "torch.nn.LayerNorm", {"eps": 1e-5, "bias": False}, "layer_norm")
    with pytest.raises(UserError) as caught:
        check_mapping(SOURCE, [*kernels.records, own], kernels, settings, CPU, allowed=True)
    (override,) = shlex.split(str(caught.value.problems[0].mend))
    assert override == (
        "++model.decoder.layer_kernels.LayerNorm="
        "{_target_:torch.nn.LayerNorm,eps:1e-05,elementwise_affine:true,bias:false}"
    )


def way_back(old: KernelRecord, new: KernelRecord) -> list[str]:
    with pytest.raises(UserError) as caught:
        refuse(SOURCE, [Difference(new.component, new.slot, old, new)])
    return shlex.split(str(caught.value.problems[0].mend))


def test_the_way_back_leaves_nothing_of_the_other_kernel() -> None:
    """Overrides are merged into what a config file has: they name what would be left of it."""
    key = "model.layer_kernels.Activation"
    old = KernelRecord("Activation", "model", "torch.nn.GELU", {}, "gelu")
    new = replace(old, arguments={"approximate": "tanh"}, origin="config")
    assert way_back(old, new) == [f"{key}={{_target_:torch.nn.GELU,approximate:none}}"]
    assert way_back(replace(old, target="torch.nn.SiLU", family="silu"), new) == [
        f"~{key}.approximate", f"{key}={{_target_:torch.nn.SiLU}}",
    ]  # fmt: skip
    own = replace(
        old, target="my.Act", family="custom:my.Act", arguments={"mode": "a b", "n": 1, "flags": [True, None]}
    )
    assert way_back(own, replace(new, component="decoder")) == [
        "~model.decoder.layer_kernels.Activation.approximate",
        '++model.decoder.layer_kernels.Activation={_target_:my.Act,mode:"a b",n:1,flags:[true,null]}',
    ]
    assert len(way_back(own, replace(new, origin="default"))) == 1


def test_the_way_back_works() -> None:
    """The overrides, put on the command line after those that led here, give the kernel of the checkpoint."""
    preset = ["model/layer_kernels=rmsnorm", "++model.layer_kernels.LayerNorm.elementwise_affine=false"]
    old = KernelRecord("LayerNorm", "model", "torch.nn.GELU", {}, "gelu")
    new = replace(old, target="torch.nn.RMSNorm", family="rms_norm", origin="preset rmsnorm",
                  arguments={"eps": 1e-6, "elementwise_affine": False})  # fmt: skip
    tree = compose("train", None, [*preset, *way_back(old, new)]).tree
    assert tree["model"]["layer_kernels"]["LayerNorm"] == {"_target_": "torch.nn.GELU", "approximate": "none"}


def test_a_default_that_changed(rms_norms) -> None:
    kernels, settings = rms_norms
    other = stored(kernels, "LayerNorm", constants={"eps": 1e-6, "elementwise_affine": True, "weight_offset": 1.0})
    for allowed in (False, True):
        with pytest.raises(UserError) as caught:
            check_mapping(SOURCE, other, kernels, settings, CPU, allowed=allowed)
        (problem,) = caught.value.problems
        assert problem.where == "model.layer_kernels.LayerNorm"
        assert "weight_offset is 1.0 there and 0.0 here, as a default of torch.nn.RMSNorm has changed" in problem.what


def test_versions_that_changed(rms_norms) -> None:
    kernels, _ = rms_norms
    assert library_changes(kernels.records, kernels.records) == []
    older = [replace(record, version="0.1") if record.library == "torch" else record for record in kernels.records]
    assert library_changes(older, kernels.records) == [f"torch 0.1 -> {torch.__version__}"]
