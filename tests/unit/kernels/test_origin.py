"""Where the entry of a slot comes from, what of it nobody wrote, and what compiles it."""

from __future__ import annotations

import pytest
from small_model import make_settings

from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.entries import collect_entries
from etesian.schema.presets import Preset

TORCH = Preset("torch", {"LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-5}, "MLP": {"_target_": "a.B"}})
RMS = Preset("rmsnorm", {"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}})
KEY = "model.layer_kernels"


def norm(**entry: object) -> dict:
    return {"LayerNorm": entry}


def test_a_slot_is_of_the_preset_only_as_the_file_of_the_preset_has_it() -> None:
    settings = make_settings(
        layer_kernels={
            "LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-5},
            "Activation": {"_target_": "torch.nn.SiLU"},
            "MLP": {"_target_": "etesian.kernels.glu.GLU"},
        },
        processor={"num_heads": 2, "layer_kernels": RMS.slots},
        decoder={"num_heads": 2, "layer_kernels": RMS.slots},
    )
    chosen = {KEY: TORCH, "model.processor.layer_kernels": RMS}
    records = resolve_kernels(settings, preset="torch", overrides=[], preset_slots=chosen).records
    origins = {(record.component, record.slot): record.origin for record in records if record.origin != "default"}
    assert origins == {
        ("model", "LayerNorm"): "preset torch",
        ("model", "Activation"): "config",
        ("model", "MLP"): "config",
        ("processor", "LayerNorm"): "preset rmsnorm",
        ("decoder", "LayerNorm"): "config",
    }


def test_an_interpolation_of_a_preset_is_what_it_came_to() -> None:
    preset = Preset("mine", {"LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": "${model.my_eps}"}})
    settings = make_settings(layer_kernels=norm(_target_="torch.nn.LayerNorm", eps=0.25))
    records = resolve_kernels(settings, preset="mine", overrides=[], preset_slots={KEY: preset}).records
    assert {r.slot: r.origin for r in records}["LayerNorm"] == "preset mine"


@pytest.mark.parametrize(
    ("entry", "overrides", "note"),
    [
        ({"eps": 1e-5}, (f"{KEY}.LayerNorm._target_=torch.nn.RMSNorm",), "eps kept from torch.nn.LayerNorm"),
        ({"eps": 1e-5}, (), "eps as preset torch has it for torch.nn.LayerNorm"),
        ({"eps": 1e-4}, (), ""),
        ({"eps": 1e-5}, (f"{KEY}.LayerNorm._target_=torch.nn.RMSNorm", f"{KEY}.LayerNorm.eps=1e-5"), ""),
        ({}, (), "eps: epsilon of the dtype"),
    ],
)
def test_an_eps_that_nobody_wrote_is_told(entry: dict, overrides: tuple[str, ...], note: str) -> None:
    settings = make_settings(layer_kernels=norm(_target_="torch.nn.RMSNorm", **entry))
    records = resolve_kernels(settings, preset="torch", overrides=overrides, preset_slots={KEY: TORCH}).records
    assert {record.slot: record.note for record in records}["LayerNorm"] == note


def test_what_an_entry_of_model_compile_compiles_is_recorded_so() -> None:
    own = {"num_heads": 2, "layer_kernels": norm(_target_="torch.nn.RMSNorm", eps=1e-6, _compile_={"dynamic": True})}
    entries = [{"module": "torch.nn.GELU"}, {"kernel": "LayerNorm", "options": {"fullgraph": True}}]
    kernels = resolve_kernels(make_settings(compile=entries, decoder=own), preset=None, overrides=[])
    found = {(r.component, r.slot): (r.compile, r.compiled_by) for r in kernels.records if r.compile is not None}
    assert found == {
        ("model", "LayerNorm"): ({"fullgraph": True}, "model.compile[1]"),
        ("decoder", "LayerNorm"): ({"dynamic": True}, "model.decoder.layer_kernels.LayerNorm._compile_"),
    }
    settings = make_settings(compile=entries[1:])
    entries = collect_entries(settings, resolve_kernels(settings, preset=None, overrides=[]))
    assert [entry.where for entry in entries] == ["model.compile[0]"]


@pytest.mark.parametrize(
    ("preset", "overrides", "origin"),
    [
        (None, (), "config"),
        ("torch", (), "preset torch"),
        ("torch", ("model.layer_kernels.LayerNorm.eps=1e-6",), "override"),
        ("torch", ("~model.layer_kernels.LayerNorm.eps",), "override"),
        ("torch", ("model.layer_kernels={LayerNorm: {_target_: torch.nn.LayerNorm}}",), "override"),
        ("torch", ("model.layer_kernels.LayerNormal.eps=1", "model/layer_kernels=torch"), "preset torch"),
    ],
)
def test_origin(preset: str | None, overrides: tuple[str, ...], origin: str) -> None:
    settings = make_settings(layer_kernels=norm(_target_="torch.nn.LayerNorm"))
    kernels = resolve_kernels(settings, preset=preset, overrides=overrides)
    assert {r.slot: r.origin for r in kernels.records}["LayerNorm"] == origin
    assert {r.slot: r.origin for r in kernels.records}["Linear"] == "default"
