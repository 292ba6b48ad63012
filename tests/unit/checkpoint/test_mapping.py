"""The comparison of a checkpoint's kernels with those of a config."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_model import make_settings

from etesian.checkpoint.mapping import KEY, check_mapping, library_changes
from etesian.errors import UserError
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


def test_the_way_back_can_be_pasted_into_a_shell(rms_norms) -> None:
    kernels, settings = rms_norms
    arguments = {"eps": 1, "bias": True, "of": None}
    other = stored(kernels, "LayerNorm", target="a.B", family="custom:a.B", arguments=arguments, constants={})
    with pytest.raises(UserError) as caught:
        check_mapping(SOURCE, other, kernels, settings, CPU, allowed=False)
    (problem,) = caught.value.problems
    assert problem.mend == "'model.layer_kernels.LayerNorm={_target_:a.B,eps:1,bias:true,of:null}'"
    assert shlex.split(problem.mend) == ["model.layer_kernels.LayerNorm={_target_:a.B,eps:1,bias:true,of:null}"]


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
    expected = "'++model.decoder.layer_kernels.LayerNorm={_target_:torch.nn.LayerNorm,eps:1e-05,bias:false}'"
    assert caught.value.problems[0].mend == expected


def test_versions_that_changed(rms_norms) -> None:
    kernels, _ = rms_norms
    assert library_changes(kernels.records, kernels.records) == []
    older = [replace(record, version="0.1") if record.library == "torch" else record for record in kernels.records]
    assert library_changes(older, kernels.records) == [f"torch 0.1 -> {torch.__version__}"]
