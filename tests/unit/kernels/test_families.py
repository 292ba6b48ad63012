"""The families of kernels: what has to agree, and how each kernel has it."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_model import make_settings
from torch import nn

from etesian.kernels import families
from etesian.kernels.constants import DTYPE_EPSILON, FAMILIES, OWN_CONSTANTS, PLAIN, UNKNOWN, Argument
from etesian.kernels.families import constants_of, family_of, register_family
from etesian.kernels.interchange import (
    arguments_for,
    differences,
    find,
    interchangeable,
    named,
    plain_record,
    settled,
    written_out,
)
from etesian.kernels.record import KernelRecord

LIGER = "liger_kernel.transformers.rms_norm.LigerRMSNorm"
TE = "transformer_engine.pytorch"


class WithoutEps(nn.Module):
    def __init__(self, num_channels: int) -> None:
        super().__init__()


class WithEps(nn.Module):
    def __init__(self, num_channels: int, eps: float = 1e-6, fast: bool = True) -> None:
        super().__init__()


class HandsOn(nn.LayerNorm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@functools.wraps(nn.Linear, updated=())
def scaled_linear(*args: Any, **kwargs: Any) -> nn.Linear:
    return nn.Linear(*args, **kwargs)


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is gone after it."""
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_CONSTANTS", dict(families._CONSTANTS))


SETTINGS = make_settings()


def record(target: str, slot: str = "LayerNorm", component: str = "model", note: str = "", **arguments: Any):
    return KernelRecord(slot, component, target, arguments, family_of(target), note=note)


@pytest.mark.parametrize("target", sorted(OWN_CONSTANTS))
def test_declared_defaults_are_those_of_the_library(target: str) -> None:
    family = FAMILIES[family_of(target)]
    assert set(OWN_CONSTANTS[target]) <= set(family.constants)
    try:
        parameters = inspect.signature(find(target)).parameters
    except ModuleNotFoundError as missing:
        pytest.skip(f"not installed: {missing.name}")
    for reader in OWN_CONSTANTS[target].values():
        if isinstance(reader, Argument):
            assert parameters[reader.name].default == reader.default, reader.name


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_names_kernels_that_are_there(family: Any) -> None:
    assert family.plain in PLAIN
    assert family_of(family.plain) == family.name
    for path in (family.plain, family.reference):
        assert issubclass(find(path), nn.Module)


@pytest.mark.parametrize("target", sorted(PLAIN))
def test_plain_kernels_need_pytorch_alone(target: str) -> None:
    assert family_of(target) in FAMILIES
    assert target.split(".")[0] in ("torch", "etesian")
    source = inspect.getsource(importlib.import_module(find(target).__module__))
    assert not any(library in source for library in ("liger_kernel", "triton", "transformer_engine", "torch_geometric"))


@pytest.mark.parametrize(
    ("target", "arguments", "name", "value"),
    [
        ("torch.nn.LayerNorm", {}, "eps", 1e-5),
        ("torch.nn.LayerNorm", {"eps": 1e-3}, "eps", 1e-3),
        ("torch.nn.LayerNorm", {"elementwise_affine": False}, "bias", False),
        ("torch.nn.RMSNorm", {}, "eps", DTYPE_EPSILON),
        ("torch.nn.RMSNorm", {"eps": 1e-6}, "eps", 1e-6),
        (LIGER, {}, "eps", 1e-6),
        (LIGER, {"offset": 1.0}, "weight_offset", 1.0),
        ("liger_kernel.transformers.layer_norm.LigerLayerNorm", {}, "eps", 1e-6),
        ("etesian.kernels.liger.LigerLayerNorm", {}, "eps", 1e-5),
        ("etesian.kernels.norms.AutocastLayerNorm", {"bias": False}, "bias", False),
        (f"{TE}.RMSNorm", {"zero_centered_gamma": True}, "weight_offset", 1.0),
        (f"{TE}.LayerNorm", {}, "eps", 1e-5),
        (f"{TE}.Linear", {"bias": False}, "bias", False),
        ("torch.nn.GELU", {"approximate": "tanh"}, "approximate", "tanh"),
        ("etesian.kernels.glu.GeGLU", {}, "approximate", "none"),
        ("etesian.kernels.liger.LigerGeGLU", {}, "approximate", "tanh"),
    ],
)
def test_constants_of_known_kernels(target: str, arguments: dict[str, Any], name: str, value: Any) -> None:
    assert constants_of(target, family_of(target), arguments)[name] == value


def test_a_family_of_its_own_has_no_constants() -> None:
    assert family_of("my.Norm") == "custom:my.Norm"
    assert constants_of("my.Norm", "custom:my.Norm", {"eps": 1.0}) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (record(LIGER, eps=1e-6), record("torch.nn.RMSNorm", eps=1e-6)),
        (record(LIGER), record("torch.nn.RMSNorm", eps=1e-6)),
        (record("torch.nn.LayerNorm"), record("etesian.kernels.norms.AutocastLayerNorm", eps=1e-5)),
        (record("torch.nn.LayerNorm", bias=False, elementwise_affine=False),
         record("torch.nn.LayerNorm", elementwise_affine=False)),
        (record(f"{TE}.LayerNorm"), record("torch.nn.LayerNorm")),
        (record("torch.nn.RMSNorm"), record("torch.nn.RMSNorm")),
        (record("my.Norm", depth=2), record("my.Norm", depth=2)),
        (record("etesian.kernels.pyg.PygGraphAttention"), record("etesian.kernels.factored.FactoredGraphAttention")),
    ],
    ids=lambda kernel: kernel.target.rpartition(".")[2],
)  # fmt: skip
def test_interchangeable(old: KernelRecord, new: KernelRecord) -> None:
    assert interchangeable(old, new) == interchangeable(new, old) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (record("torch.nn.LayerNorm", eps=1e-6), record("torch.nn.RMSNorm", eps=1e-6), "different mathematics"),
        (record("torch.nn.LayerNorm"), record("torch.nn.LayerNorm", eps=1e-6), "eps is 1e-05 there and 1e-06 here"),
        (record("torch.nn.RMSNorm"), record(LIGER), "'epsilon of the dtype' there and 1e-06 here"),
        (record("torch.nn.LayerNorm"), record("torch.nn.LayerNorm", bias=False), "bias is True there"),
        (record(LIGER, offset=1.0), record("torch.nn.RMSNorm", eps=1e-6), "weight_offset is 1.0"),
        (record("torch.nn.GELU"), record("torch.nn.GELU", approximate="tanh"), "approximate is 'none'"),
        (record("torch.nn.GELU"), record("torch.nn.SiLU"), r"gelu .*silu"),
        (record("my.Norm", depth=2), record("my.Norm", depth=3), "nothing tells which constants"),
        (record("my.Norm"), record("torch.nn.LayerNorm"), "custom:my.Norm, layer_norm"),
    ],
)  # fmt: skip
def test_not_interchangeable(old: KernelRecord, new: KernelRecord, reason: str) -> None:
    (said,) = interchangeable(old, new)
    assert re.search(reason, said), said


def test_a_kernel_declares_itself() -> None:
    register_family("test_families.WithEps", "rms_norm")
    register_family("test_families.WithoutEps", "rms_norm")
    assert constants_of("test_families.WithEps", "rms_norm", {}, WithEps)["eps"] == 1e-6
    assert constants_of("test_families.WithEps", "rms_norm", {"eps": 1.0}, WithEps)["eps"] == 1.0
    assert constants_of("test_families.WithoutEps", "rms_norm", {}, WithoutEps)["eps"] == UNKNOWN
    (reason,) = interchangeable(record("test_families.WithoutEps"), record(LIGER))
    assert "eps of test_families.WithoutEps is not known" in reason
    register_family("test_families.WithoutEps", "rms_norm", {"eps": 1e-6})
    assert interchangeable(record("test_families.WithoutEps"), record(LIGER)) == []


def test_what_can_not_be_declared() -> None:
    with pytest.raises(ValueError, match="is of family 'layer_norm' already"):
        register_family("torch.nn.LayerNorm", "rms_norm")
    with pytest.raises(ValueError, match="family 'rms_norm' has no constant bias"):
        register_family("my.Norm", "rms_norm", {"bias": True})


def test_a_target_by_its_second_path() -> None:
    assert family_of("torch.nn.modules.linear.Linear", nn.Linear) == "linear"
    assert constants_of("torch.nn.modules.normalization.LayerNorm", "layer_norm", {}, nn.LayerNorm)["eps"] == 1e-5

    class Own(nn.LayerNorm):
        pass

    assert family_of("own.Own", Own) == "custom:own.Own"


def test_the_plain_kernel_takes_the_constants_over() -> None:
    plain, reasons = plain_record(record(LIGER, eps=1e-4, elementwise_affine=False))
    assert reasons == []
    assert (plain.target, plain.arguments) == ("torch.nn.RMSNorm", {"eps": 1e-4, "elementwise_affine": False})
    plain, reasons = plain_record(record(f"{TE}.LayerNorm"))
    assert (plain.target, plain.arguments, reasons) == ("torch.nn.LayerNorm", {"eps": 1e-5}, [])
    kept = record("etesian.kernels.norms.AutocastLayerNorm", bias=False)
    assert plain_record(kept) == (kept, [])
    attention, _ = plain_record(record("etesian.kernels.pyg.PygGraphAttention", slot="GraphAttention"))
    assert attention.target == "etesian.kernels.factored.FactoredGraphAttention"


def test_where_there_is_no_plain_kernel() -> None:
    assert plain_record(record("my.Norm"))[1] == ["family 'custom:my.Norm' has no kernel in plain PyTorch"]
    assert plain_record(record(LIGER, offset=1.0))[1] == ["torch.nn.RMSNorm has no weight_offset=1.0"]
    register_family("test_families.WithoutEps", "rms_norm")
    assert plain_record(record("test_families.WithoutEps"))[1] == ["eps is not known"]


def test_the_eps_of_the_dtype_is_written_as_none() -> None:
    constants = settled(record("torch.nn.RMSNorm"))
    assert arguments_for("torch.nn.RMSNorm", "rms_norm", constants) == ({"eps": None}, [])
    assert torch.nn.RMSNorm(4, eps=None).eps is None


def test_what_is_no_difference() -> None:
    old = [record("torch.nn.LayerNorm")]
    new = KernelRecord(
        "LayerNorm", "model", "torch.nn.LayerNorm", {"eps": 1e-5}, "layer_norm", "torch", "9.9", "override", "a note"
    )
    assert differences(old, [new], SETTINGS) == []
    assert (
        differences([record("etesian.kernels.mlp.MLP", "MLP")], [record("etesian.kernels.mlp.MLP", "MLP")], SETTINGS)
        == []
    )


def test_each_differing_slot_is_named_once() -> None:
    old = [record(LIGER), record("torch.nn.GELU", "Activation"), record("etesian.kernels.mlp.MLP", "MLP")]
    new = [record("torch.nn.RMSNorm", eps=1e-6), *old[1:]]
    (difference,) = differences(old, new, SETTINGS)
    assert str(difference) == f"model.LayerNorm: {LIGER}(eps=1e-06) -> torch.nn.RMSNorm(eps=1e-06)"
    (difference,) = differences(
        old, [*new, record(LIGER, component="decoder"), record(LIGER, component="encoder")], SETTINGS
    )
    assert difference.component == "processor"
    found = differences(old, [*new, record(LIGER, component="decoder")], SETTINGS)
    assert [one.component for one in found] == ["encoder", "processor"]


def test_slots_that_nothing_uses_do_not_count() -> None:
    norm, other = record("torch.nn.LayerNorm", "QueryNorm"), record("torch.nn.RMSNorm", "QueryNorm")
    assert differences([norm], [other], SETTINGS) == []
    normed = make_settings(processor={"num_heads": 2, "qk_norm": True})
    (difference,) = differences([norm], [other], normed)
    assert difference.component == "model"
    attention = (record("my.Attention", "Attention"), record("their.Attention", "Attention"))
    assert differences([attention[0]], [attention[1]], SETTINGS) == []
    gated = record("etesian.kernels.glu.GLU", "MLP")
    act, changed = record("torch.nn.GELU", "Activation"), record("torch.nn.SiLU", "Activation")
    assert differences([gated, act], [gated, changed], SETTINGS) == []


def test_a_kernel_is_shown_with_its_constants() -> None:
    assert named(record("torch.nn.RMSNorm")) == "torch.nn.RMSNorm(eps='epsilon of the dtype')"
    assert named(record(LIGER, offset=0.5)) == f"{LIGER}(offset=0.5, eps=1e-06)"
    assert named(record("torch.nn.SiLU")) == "torch.nn.SiLU()"


def test_a_misspelt_family_is_refused_and_a_new_one_has_to_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_OWN", set())
    with pytest.raises(ValueError, match="no family 'rmsnorm': did you mean 'rms_norm'"):
        register_family("my.Norm", "rmsnorm")
    with pytest.raises(ValueError, match=r"no family 'wavelet': there are linear, .*; new=True makes one"):
        register_family("my.Norm", "wavelet")
    assert family_of("my.Norm") == "custom:my.Norm"
    register_family("my.Norm", "wavelet", new=True)
    register_family("my.OtherNorm", "wavelet")
    assert family_of("my.Norm") == family_of("my.OtherNorm") == "wavelet"
    with pytest.raises(ValueError, match="'rms_norm' is known already"):
        register_family("my.Third", "rms_norm", new=True)


def test_the_names_of_what_is_wrapped_make_no_family() -> None:
    """``functools.wraps`` copies module and name: a wrapper may do anything with what it wraps."""
    assert (scaled_linear.__module__, scaled_linear.__qualname__) == (nn.Linear.__module__, "Linear")
    path = "test_families.scaled_linear"
    assert family_of(path, scaled_linear) == f"custom:{path}"
    register_family(path, "linear")
    assert family_of(path, scaled_linear) == "linear"

    class Linear(nn.Linear):
        __module__, __qualname__ = "torch.nn.modules.linear", "Linear"

    assert family_of("own.Linear", Linear) == "custom:own.Linear"


def test_constants_that_are_handed_on_to_a_base_class() -> None:
    register_family("test_families.HandsOn", "layer_norm")
    constants = constants_of("test_families.HandsOn", "layer_norm", {"bias": False}, HandsOn)
    assert constants == {"eps": 1e-5, "elementwise_affine": True, "bias": False, "weight_offset": 0.0}


def test_a_default_that_changed_is_a_difference() -> None:
    register_family("test_families.WithEps", "rms_norm")
    now = record("test_families.WithEps")
    now = replace(now, constants=constants_of(now.target, now.family, {}, WithEps))
    before = replace(now, constants=now.constants | {"eps": 1e-5})
    assert differences([now], [now], SETTINGS) == []
    (difference,) = differences([before], [now], SETTINGS)
    (reason,) = interchangeable(difference.old, difference.new)
    assert "eps is 1e-05 there and 1e-06 here, as a default of test_families.WithEps has changed since" in reason
    assert written_out(before) == {"eps": 1e-5}
    (reason,) = interchangeable(replace(now, family="layer_norm"), now)
    assert "different mathematics" in reason
    assert differences([replace(now, family="custom:test_families.WithEps", constants={})], [now], SETTINGS) == []


def test_a_difference_is_named_where_it_can_be_mended() -> None:
    """Where every component has a kernel of its own, the one of the model would change nothing."""
    old = [record("torch.nn.LayerNorm")]
    own = [record(LIGER, component=name) for name in ("encoder", "processor", "decoder")]
    assert [one.component for one in differences(old, [*old, *own], SETTINGS)] == ["encoder", "processor", "decoder"]
