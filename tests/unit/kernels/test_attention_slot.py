"""The slot ``Attention``: which components use it, what the record says, what the probe finds."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from small_model import make_settings

from etesian.errors import Problem, UserError
from etesian.kernels import families
from etesian.kernels.families import family_of, register_family
from etesian.kernels.interchange import differences, interchangeable
from etesian.kernels.parity import compare
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import EDGE_PROJECTION_NOTE, ComponentKernels, resolve_kernels
from etesian.schema.model import ModelSettings

CPU = torch.device("cpu")
KERNELS = ["reference.ReferenceAttention", "sdpa.ScaledDotProductAttention", "flex.FlexAttention"]


def settings_of(mapping: dict | None = None, kind: str = "transformer", **changes: object) -> ModelSettings:
    return make_settings(kind, layer_kernels=mapping or {}, **changes)


def resolve(settings: ModelSettings) -> ComponentKernels:
    return resolve_kernels(settings, preset=None, overrides=[])


def own(name: str, **arguments: object) -> dict[str, dict[str, object]]:
    return {"Attention": {"_target_": f"etesian.kernels.attention.{name}", **arguments}}


def faulty(name: str) -> dict[str, dict[str, str]]:
    return {"Attention": {"_target_": f"faulty_kernels.{name}"}}


def probe(mapping: dict, kind: str = "transformer", precision: str = "32-true", **processor: object) -> None:
    block = {"num_heads": 2, "num_layers": 1, **processor}
    settings = settings_of(mapping, kind, processor=block)
    probe_kernels(resolve(settings), settings, CPU, precision)


def problem(action: object, *arguments: object, **options: object) -> Problem:
    with pytest.raises(UserError) as caught:
        action(*arguments, **options)
    (only,) = caught.value.problems
    return only


def notes(settings: ModelSettings) -> dict[str, str]:
    return {f"{record.component}.{record.slot}": record.note for record in resolve(settings).records}


def test_all_kernels_are_of_one_family() -> None:
    paths = [f"etesian.kernels.attention.{name}" for name in [*KERNELS, "flash.FlashAttention"]]
    assert {family_of(path) for path in paths} == {"attention"}


def test_the_record_tells_who_uses_which_attention() -> None:
    graph, plain = notes(settings_of(kind="graphtransformer")), notes(settings_of())
    assert graph["model.Attention"] == "not used: nothing in a model of kind graphtransformer is made by it"
    assert graph["model.GraphAttention"] == graph["model.Linear"] == EDGE_PROJECTION_NOTE
    assert plain["model.Attention"] == "used in processor"
    assert plain["model.GraphAttention"] == f"{EDGE_PROJECTION_NOTE}; used in encoder, decoder"
    assert plain["model.Linear"] == EDGE_PROJECTION_NOTE


def test_what_a_component_has_for_nothing_is_marked() -> None:
    ours = {"num_heads": 2, "layer_kernels": {"Linear": {"_target_": "torch.nn.Linear"}}}
    theirs = {"num_heads": 2, "layer_kernels": own("reference.ReferenceAttention")}
    unused = {"GraphAttention": {"_target_": "etesian.kernels.pyg.PygGraphAttention"}}
    found = notes(settings_of(processor=ours | {"layer_kernels": ours["layer_kernels"] | unused}, encoder=theirs))
    assert found["processor.Linear"] == ""
    assert found["processor.GraphAttention"] == "not used: no processor in a model of kind transformer is made by it"
    assert found["encoder.Attention"] == "not used: no encoder in a model of kind transformer is made by it"


def test_any_linear_will_do_where_no_edges_are_projected() -> None:
    linear = {"num_heads": 2, "layer_kernels": {"Linear": {"_target_": "marker_kernels.OwnLinear"}}}
    resolve(settings_of(processor=linear))
    found = problem(resolve, settings_of(kind="graphtransformer", processor=linear))
    assert found.where == "model.processor.layer_kernels.Linear"
    found = problem(resolve, settings_of(linear["layer_kernels"]))  # encoder and decoder have edges in every kind
    assert found.where == "model.layer_kernels.Linear"


def test_the_window_is_the_models_to_pass() -> None:
    found = problem(resolve, settings_of(own("sdpa.ScaledDotProductAttention", window_size=3)))
    assert "the model itself passes 'window_size'" in found.what
    assert found.mend == "~model.layer_kernels.Attention.window_size"


def test_a_kernel_without_a_window_is_refused() -> None:
    found = problem(resolve, settings_of({"Attention": {"_target_": "torch.nn.MultiheadAttention"}}))
    assert "window_size" in found.what
    assert "(num_heads, head_channels, window_size=...)" in found.what


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed")
def test_without_its_library_flash_says_what_installs_it() -> None:
    found = problem(resolve, settings_of(own("flash.FlashAttention")))
    assert "the library is missing (flash-attn)" in found.what
    assert found.where == "model.layer_kernels.Attention._target_"
    assert found.mend == "pip install 'etesian[flash_attn]'"


# Another kernel in its place


def test_kernels_may_be_exchanged_and_are_compared_in_the_component_that_uses_them() -> None:
    mapping = own("reference.ReferenceAttention")
    settings = settings_of(mapping, processor={"num_heads": 4, "window_size": 2})
    before, now = resolve(settings.model_copy(update={"layer_kernels": {}})), resolve(settings)
    (difference,) = differences(before.records, now.records, settings)
    assert interchangeable(difference.old, difference.new) == []
    parity = compare(difference, now, settings, CPU)
    assert parity.passed
    assert parity.precision == "64-true"


def test_a_kernel_that_forgets_the_window_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.kernels.families._FAMILIES", dict(families._FAMILIES))
    register_family("faulty_kernels.SelfAttentionWithoutWindow", "attention")
    settings = settings_of(faulty("SelfAttentionWithoutWindow"), processor={"num_heads": 4, "window_size": 2})
    before, now = resolve(settings.model_copy(update={"layer_kernels": {}})), resolve(settings)
    (difference,) = differences(before.records, now.records, settings)
    assert not compare(difference, now, settings, CPU).passed


# The probe


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("window", [0, 2, 512, None])
@pytest.mark.parametrize("name", KERNELS[:2])
def test_what_runs_passes(name: str, window: int | None, precision: str) -> None:
    for norm in ({}, {"QueryNorm": {"_target_": "torch.nn.LayerNorm"}}):  # under autocast the latter returns float32
        probe(own(name) | norm, precision=precision, window_size=window, qk_norm=True)


def test_flex_does_not_train_on_a_cpu() -> None:
    found = problem(probe, own("flex.FlexAttention"))
    assert "slot Attention of the model: etesian.kernels.attention.flex.FlexAttention does not run on cpu" in found.what
    assert "does not support backward on CPU" in found.what


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("SelfAttentionWithoutKeys", "it passes no gradient to its key"),
        ("SelfAttentionOfNodesFirst", "it returns the shape [2, 6, 2, 8], where [2, 2, 6, 8] is due"),
        ("SelfAttentionOfWindow7", "ValueError: a window of 3 is none of mine"),
    ],
)
def test_each_fault_is_told(kernel: str, said: str) -> None:
    found = problem(probe, faulty(kernel), window_size=3)
    assert said in found.what
    assert found.where == "model.layer_kernels.Attention"
    assert "model.layer_kernels.Attention._target_=etesian.kernels.attention.sdpa" in str(found.mend)


def test_a_kernel_that_the_kind_does_not_use_is_not_run() -> None:
    probe(faulty("SelfAttentionWithoutKeys"), kind="graphtransformer")
    unused = {"GraphAttention": {"_target_": "faulty_kernels.AttentionWithoutKeys"}}
    probe({}, layer_kernels=unused)
    assert "no gradient to its key" in problem(probe, unused).what  # encoder and decoder use it


def test_it_is_called_as_the_model_calls_it() -> None:
    probe(faulty("SelfAttentionOfWindow7"), window_size=7)
    probe(faulty("SelfAttentionOfPackedHeads"), window_size=7)


def test_a_linear_has_to_do_without_bias_in_the_processor() -> None:
    linear = {"Linear": {"_target_": "faulty_kernels.LinearWithBiasOnly"}}
    found = problem(probe, {}, layer_kernels=linear)
    assert "slot Linear of processor" in found.what
    assert "a bias it has to be" in found.what


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", "torch.float32"), ("64-true", "torch.float64")])
def test_flash_stops_in_a_precision_of_more_than_16_bits(
    precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("flash_attn")
    library.flash_attn_func = None  # it must not come so far
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    monkeypatch.delitem(sys.modules, "etesian.kernels.attention.flash", raising=False)
    monkeypatch.setattr("etesian.kernels.targets.importlib.metadata.version", lambda name: "2.8.3")
    settings = settings_of(own("flash.FlashAttention"))
    kernels = resolve(settings)
    assert (kernels.model.Attention.record.library, kernels.model.Attention.record.version) == ("flash-attn", "2.8.3")
    found = problem(probe_kernels, kernels, settings, CPU, precision)
    assert f"flash_attn takes float16 and bfloat16 only, not {dtype}: it needs training.precision=bf16" in found.what
    assert str(found.mend).startswith("run on a GPU, system=gpu, or model.layer_kernels.Attention._target_=")
    sys.modules.pop("etesian.kernels.attention.flash")
