"""The catalogue of kernels, and which of them are compared."""

from __future__ import annotations

import sys

import pytest
from small_model import make_settings

from etesian.errors import UserError
from etesian.kernels.bench.candidates import candidates, chosen_slots
from etesian.kernels.catalog import KERNELS
from etesian.kernels.families import constants_of, family_of
from etesian.kernels.interchange import interchangeable
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import resolve_kernels
from etesian.kernels.slots import SLOTS


def record(slot: str, target: str, arguments: dict) -> KernelRecord:
    family = family_of(target)
    return KernelRecord(slot, "model", target, arguments, family, constants=constants_of(target, family, arguments))


def found(slot: str, **changes: object) -> dict[str, object]:
    settings = make_settings(**changes)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    return {candidate.label: candidate for candidate in candidates(slot, settings, kernels)}


def test_every_slot_has_its_default_and_every_kernel_a_family() -> None:
    assert set(KERNELS) == set(SLOTS)
    for slot, entries in KERNELS.items():
        assert SLOTS[slot].target in [entry.target for entry in entries]
        for entry in entries:
            assert not family_of(entry.target).startswith("custom:"), entry


@pytest.mark.parametrize("slot", ["LayerNorm", "QueryNorm", "KeyNorm", "Linear"])
def test_kernels_of_a_family_are_interchangeable(slot: str) -> None:
    records = [record(slot, entry.target, dict(entry.arguments)) for entry in KERNELS[slot]]
    for one in records:
        for other in records:
            if one.family == other.family:
                assert interchangeable(one, other) == []


def test_the_own_kernel_is_named_once_and_the_others_get_its_constants() -> None:
    norm = {"_target_": "torch.nn.LayerNorm", "eps": 1e-3}
    own = found("LayerNorm", layer_kernels={"LayerNorm": norm})
    assert own["torch.nn.LayerNorm(eps=0.001)"].chosen_by == ("model",)
    assert [label for label in own if label.startswith("torch.nn.LayerNorm")] == ["torch.nn.LayerNorm(eps=0.001)"]
    assert "torch.nn.RMSNorm(eps=1e-06)" in own
    heads = found("QueryNorm")
    assert heads["torch.nn.LayerNorm(eps=1e-05, bias=False)"].chosen_by == ()
    assert {"torch.nn.GELU", "torch.nn.GELU(approximate='tanh')"} <= set(found("Activation"))


def test_the_kernel_of_a_component_takes_part() -> None:
    block = {
        "num_heads": 2,
        "mlp_hidden_ratio": 2.0,
        "layer_kernels": {"LayerNorm": {"_target_": "faulty_kernels.Scale"}},
    }
    own = found("LayerNorm", encoder=block)
    assert own["faulty_kernels.Scale"].chosen_by == ("encoder",)
    assert own["torch.nn.LayerNorm(eps=1e-05)"].chosen_by == ("model",)


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    liger = found("LayerNorm")["liger_kernel.transformers.rms_norm.LigerRMSNorm(eps=1e-06)"]
    assert (liger.kernels, liger.record) == (None, None)
    assert liger.reason == "the library is missing (liger-kernel)"
    assert liger.mend == "pip install 'etesian[liger]'"


def test_slots() -> None:
    settings = make_settings()
    assert chosen_slots(["MLP", "Linear", "MLP"], settings) == ["MLP", "Linear"]
    used = chosen_slots(None, settings)
    assert "GraphAttention" in used
    assert not {"QueryNorm", "KeyNorm", "Attention"} & set(used)
    with pytest.raises(UserError, match="unknown layer kernel slot 'layernorm'") as error:
        chosen_slots(["layernorm"], settings)
    assert error.value.problems[0].mend == "did you mean 'LayerNorm'?"
