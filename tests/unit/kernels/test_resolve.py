"""Strict resolution: what is accepted, and how each mistake is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from small_model import make_settings

from etesian.errors import Problem, UserError
from etesian.kernels.resolve import EDGE_PROJECTION_NOTE, ComponentKernels, resolve_kernels
from etesian.kernels.slots import SLOTS

CONFIG = Path(__file__).parents[3] / "config"


def resolve(
    mapping: dict | None = None,
    *,
    kind: str = "graphtransformer",
    preset: str | None = None,
    overrides: tuple[str, ...] = (),
    **sections: dict,
) -> ComponentKernels:
    sections = {name: {"num_heads": 2} | section for name, section in sections.items()}
    settings = make_settings(kind, layer_kernels=mapping or {}, **sections)
    return resolve_kernels(settings, preset=preset, overrides=overrides)


def problems(mapping: dict | None = None, **options: object) -> tuple[Problem, ...]:
    with pytest.raises(UserError) as caught:
        resolve(mapping, **options)
    return caught.value.problems


def problem(mapping: dict | None = None, **options: object) -> Problem:
    (only,) = problems(mapping, **options)
    return only


def norm(**entry: object) -> dict:
    return {"LayerNorm": entry}


def test_left_out_slots_get_their_defaults() -> None:
    kernels = resolve()
    assert [record.slot for record in kernels.records] == list(SLOTS)
    assert {record.origin for record in kernels.records} == {"default"}
    built = kernels.model.LayerNorm(8)
    assert type(built) is torch.nn.LayerNorm
    assert built.eps == 1e-5
    assert kernels.model.QueryNorm(8).bias is None


def test_the_preset_torch_says_what_the_defaults_are() -> None:
    mapping = yaml.safe_load((CONFIG / "model" / "layer_kernels" / "torch.yaml").read_text())
    written = {r.slot: replace(r, origin="default") for r in resolve(mapping, preset="torch").records}
    assert written == {r.slot: r for r in resolve().records}


def test_a_kernel_of_a_file_of_the_user_is_recorded_with_that_file() -> None:
    (record,) = [r for r in resolve(norm(_target_="marker_kernels.make_norm")).records if r.slot == "LayerNorm"]
    assert record.library.endswith("marker_kernels.py")
    assert record.version == ""
    assert record.family == "custom:marker_kernels.make_norm"


def test_arguments_reach_the_kernel_and_partial_is_accepted() -> None:
    kernels = resolve(norm(_target_="torch.nn.RMSNorm", _partial_=True, eps=1e-6))
    assert kernels.encoder.LayerNorm(8).eps == 1e-6
    assert not any("_partial_" in record.arguments for record in kernels.records)


def test_a_function_annotated_to_return_a_module_is_a_kernel() -> None:
    assert resolve(norm(_target_="marker_kernels.make_norm", eps=1e-3)).model.LayerNorm(4).eps == 1e-3


def test_a_linear_without_bias() -> None:
    linear = resolve({"Linear": {"_target_": "torch.nn.Linear", "bias": False}}).model.Linear(3, 2)
    assert linear.bias is None


def test_components_override_slots() -> None:
    kernels = resolve(processor={"layer_kernels": norm(_target_="torch.nn.RMSNorm", eps=1e-6)})
    assert type(kernels.processor.LayerNorm(4)) is torch.nn.RMSNorm
    assert type(kernels.encoder.LayerNorm(4)) is torch.nn.LayerNorm
    assert [r.component for r in kernels.records if r.slot == "LayerNorm"] == ["model", "processor"]


# Step 1: slots


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"mapping": {"LayerNrom": {"_target_": "torch.nn.LayerNorm"}}}, "model.layer_kernels.LayerNrom"),
        (
            {"processor": {"layer_kernels": {"LayerNrom": {"_target_": "torch.nn.LayerNorm"}}}},
            "model.processor.layer_kernels.LayerNrom",
        ),
    ],
)
def test_an_unknown_slot_names_the_nearest(sections: dict, where: str) -> None:
    found = problem(**sections)
    assert (found.where, found.mend) == (where, "did you mean 'LayerNorm'?")
    assert found.allowed == ", ".join(SLOTS)


# Step 2: targets


@pytest.mark.parametrize(("target", "meant"), [("toch.nn.RMSNorm", "torch"), ("my_kernel.Norm", "my_kernels")])
def test_a_misspelt_library_names_the_nearest(
    target: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_kernels.py").touch()
    monkeypatch.chdir(tmp_path)
    assert str(problem(norm(_target_=target)).mend).startswith(f"did you mean {meant!r}? Else install ")


@pytest.mark.parametrize("text", ["x = 1\ndef norm(:\n", "x = 1\nx.norm\n", "import os\nraise OSError('none')\n"])
def test_a_file_of_the_user_that_fails_is_named_with_the_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "half_written.py"
    file.write_text(text)
    assert problem(norm(_target_="half_written.Norm")).mend == f"correct {file}, line 2"


def test_an_unknown_library_keeps_the_cause() -> None:
    found = problem(norm(_target_="no_such_library.Norm"))
    assert "ModuleNotFoundError: No module named 'no_such_library'" in found.what


@pytest.mark.parametrize(
    ("target", "mend"),
    [
        ("torch.nn.LayerNrom", "did you mean 'LayerNorm'"),
        ("torch.nnn.LayerNorm", "did you mean 'nn'"),
        ("etesian.kernels.norm.AutocastLayerNorm", "did you mean 'norms'"),
        ("torch.nn.LayerNorm.mean", ""),
    ],
)
def test_a_wrong_path_inside_a_library_names_the_nearest(target: str, mend: str) -> None:
    found = problem(norm(_target_=target))
    assert "is installed, but the path is wrong inside it" in found.what
    assert (found.mend or "").startswith(mend)


def test_a_library_that_lacks_a_dependency_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halflib").mkdir()
    (tmp_path / "halflib" / "__init__.py").touch()
    (tmp_path / "halflib" / "norms.py").write_text("import no_such_dependency\n")
    (tmp_path / "halflib" / "broken.py").write_text("raise OSError('libfast.so.1 is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = problem(norm(_target_="halflib.norms.Norm"))
    assert "importing 'halflib.norms' failed: ModuleNotFoundError: No module named 'no_such_dependency'" in found.what
    assert found.mend == "install 'no_such_dependency'"
    found = problem(norm(_target_="halflib.broken.Norm"))
    assert "OSError: libfast.so.1 is missing" in found.what
    assert found.mend == f"correct {tmp_path / 'halflib' / 'broken.py'}, line 1"


def test_an_attribute_that_a_library_fails_to_import_keeps_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazylib.py").write_text("def __getattr__(name):\n    raise ImportError('needs the GPU build')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "ImportError: needs the GPU build" in problem(norm(_target_="lazylib.Norm")).what


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("os.system", "is a builtin_function_or_method; it was not called"),
        ("marker_kernels.Plain", "is a class, but no torch.nn.Module"),
        ("marker_kernels.make_untold", "has no return annotation; it was not called"),
        ("marker_kernels.make_number", "is annotated to return int; it was not called"),
        ("marker_kernels.make_unknown", "name 'NoSuchName' is not defined"),
        ("marker_kernels.an_instance", "is a GELU; it was not called"),
        ("torch.nn.functional", "is a module; it was not called"),
    ],
)
def test_what_makes_no_modules_is_refused_uncalled(target: str, said: str) -> None:
    found = problem(norm(_target_=target))
    assert said in found.what
    assert found.allowed == "a subclass of torch.nn.Module, or a function annotated to return one"


@pytest.mark.parametrize("target", ["LayerNorm", "torch..LayerNorm", "", "torch.nn.Layer Norm"])
def test_what_is_no_path_is_refused(target: str) -> None:
    assert "is not a dotted path" in problem(norm(_target_=target)).what


@pytest.mark.parametrize("entry", [{}, {"eps": 1e-6}, {"_target_": 3}])
def test_an_entry_without_target_is_refused(entry: dict) -> None:
    assert problem({"LayerNorm": entry}).where == "model.layer_kernels.LayerNorm._target_"


# Step 3: arguments


def test_an_argument_that_the_target_does_not_take_shows_its_signature() -> None:
    found = problem(norm(_target_="torch.nn.LayerNorm", epss=1e-6))
    assert found.where == "model.layer_kernels.LayerNorm.epss"
    assert "does not take 'epss'" in found.what
    assert found.allowed.startswith("torch.nn.LayerNorm(normalized_shape, eps=1e-05")
    assert found.mend == "did you mean 'eps'?"


def test_an_argument_that_the_target_lacks_shows_its_signature() -> None:
    found = problem(norm(_target_="marker_kernels.ScaledNorm"))
    assert "missing a required" in found.what
    assert "'scale'" in found.what
    assert found.allowed == "marker_kernels.ScaledNorm(width, *, scale)"


def test_an_argument_that_the_model_passes_by_position_is_refused() -> None:
    found = problem(norm(_target_="torch.nn.LayerNorm", normalized_shape=64))
    assert "by position" in found.what
    assert found.mend == "~model.layer_kernels.LayerNorm.normalized_shape"


def test_an_argument_that_the_model_passes_by_name_is_refused() -> None:
    found = problem({"MLP": {"_target_": "etesian.kernels.mlp.MLP", "layer_kernels": 1}})
    assert "the model itself passes 'layer_kernels'" in found.what


@pytest.mark.parametrize(
    ("slot", "target", "said"),
    [
        ("Activation", "torch.nn.LayerNorm", "missing a required argument: 'normalized_shape'"),
        ("MLP", "torch.nn.Linear", "layer_kernels"),
        ("GraphAttention", "torch.nn.Identity", None),
        ("Linear", "torch.nn.Bilinear", "missing a required argument"),
        ("QueryNorm", "torch.nn.GroupNorm", "missing a required argument: 'num_channels'"),
    ],
)
def test_the_slot_decides_how_a_kernel_is_built(slot: str, target: str, said: str | None) -> None:
    mapping = {slot: {"_target_": target}}
    if said is None:
        assert {record.slot: record.target for record in resolve(mapping).records}[slot] == target
    else:
        found = problem(mapping)
        assert said in found.what
        assert SLOTS[slot].construction in found.what


@pytest.mark.parametrize(
    "override",
    [
        "model.layer_kernels.LayerNorm._target_=etesian.kernels.norms.AutocastLayerNorm",
        "++model.layer_kernels.LayerNorm._target_=etesian.kernels.norms.AutocastLayerNorm",
        "model.layer_kernels.LayerNorm={_target_: etesian.kernels.norms.AutocastLayerNorm}",
    ],
)
def test_what_a_preset_left_under_a_changed_target_is_named_as_such(override: str) -> None:
    found = problem(
        norm(_target_="etesian.kernels.norms.AutocastLayerNorm", bogus=1), preset="torch", overrides=(override,)
    )
    assert "bogus=1 is left over" in found.what
    assert found.mend == "add the override ~model.layer_kernels.LayerNorm.bogus"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm", "+model.layer_kernels.LayerNorm.epsilon=1"),
        ("model.layer_kernels.LayerNorm={_target_: torch.nn.LayerNorm, epsilon: 1}",),
        ("model.processor.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm",),
    ],
)
def test_what_the_user_set_is_not_called_left_over(overrides: tuple[str, ...]) -> None:
    found = problem(norm(_target_="torch.nn.LayerNorm", epsilon=1), preset="torch", overrides=overrides)
    assert "left over" not in found.what
    assert "does not take 'epsilon'" in found.what


def test_left_over_in_a_component() -> None:
    key = "model.processor.layer_kernels.LayerNorm"
    found = problem(
        processor={"layer_kernels": norm(_target_="torch.nn.LayerNorm", scale=1)},
        overrides=(f"{key}._target_=torch.nn.LayerNorm",),
    )
    assert found.mend == f"add the override ~{key}.scale"


@pytest.mark.parametrize("name", ["_convert_", "_recursive_", "_args_"])
def test_other_special_keys_are_refused(name: str) -> None:
    found = problem(norm(_target_="torch.nn.LayerNorm", **{name: "all"}))
    assert found.where == f"model.layer_kernels.LayerNorm.{name}"
    assert found.allowed == "_target_, _partial_: true, _compile_, and arguments of the target"


@pytest.mark.parametrize("value", [False, "true", None])
def test_partial_is_true_or_left_out(value: object) -> None:
    assert "_partial_" in problem(norm(_target_="torch.nn.LayerNorm", _partial_=value)).what


def test_all_problems_come_in_one_error() -> None:
    found = problems(
        {"Nrom": {"_target_": "x.y"}, "LayerNorm": {"_target_": "torch.nn.LayerNrom"}, "MLP": {}},
        decoder={"layer_kernels": {"Activation": {"_target_": "os.system"}}},
    )
    assert [p.where for p in found] == [
        "model.layer_kernels.Nrom",
        "model.layer_kernels.LayerNorm._target_",
        "model.layer_kernels.MLP._target_",
        "model.decoder.layer_kernels.Activation._target_",
    ]


# Fusion of the edge projection


def test_another_linear_can_not_be_fused() -> None:
    mapping = {"Linear": {"_target_": "marker_kernels.OwnLinear"}}
    found = problem(mapping)
    for part in ("slot GraphAttention", "slot Linear", "marker_kernels.OwnLinear", "custom:marker_kernels.OwnLinear"):
        assert part in found.what
    assert found.where == "model.layer_kernels.Linear"
    assert found.mend == "model.layer_kernels.Linear._target_=torch.nn.Linear"


def test_another_linear_in_one_component_can_not_be_fused() -> None:
    found = problem(decoder={"layer_kernels": {"Linear": {"_target_": "marker_kernels.OwnLinear"}}})
    assert found.where == "model.decoder.layer_kernels.Linear"


def test_another_linear_can_not_be_part_of_one_product() -> None:
    own = {"layer_kernels": {"Linear": {"_target_": "marker_kernels.OwnLinear"}}}
    resolve({}, kind="transformer", processor=own)  # called as it is
    found = problem({}, kind="transformer", processor=own | {"fuse_projections": True})
    for part in ("model.processor.fuse_projections=true", "slot Linear", "custom:marker_kernels.OwnLinear"):
        assert part in found.what
    assert found.where == "model.processor.layer_kernels.Linear"
    assert found.mend == (
        "model.processor.fuse_projections=false, or model.processor.layer_kernels.Linear._target_=torch.nn.Linear"
    )


def test_the_table_says_where_projections_are_one_product() -> None:
    fused = {"fuse_projections": True}
    assert resolve().records[0].note == EDGE_PROJECTION_NOTE
    everywhere = resolve({}, encoder=fused, processor=fused, decoder=fused)
    assert everywhere.records[0].note == f"{EDGE_PROJECTION_NOTE}; query, key, value: one product"
    assert resolve({}, processor=fused).records[0].note.endswith("query, key, value: one product in processor")


def test_a_linear_that_no_component_uses_is_no_obstacle() -> None:
    plain = {"layer_kernels": {"Linear": {"_target_": "torch.nn.Linear"}}}
    kernels = resolve(
        {"Linear": {"_target_": "marker_kernels.OwnLinear"}}, encoder=plain, processor=plain, decoder=plain
    )
    assert kernels.records[0].note == "not used: every component has its own"


def test_the_same_class_by_its_long_path_is_plain() -> None:
    kernels = resolve({"Linear": {"_target_": "torch.nn.modules.linear.Linear"}})
    assert kernels.records[0].family == "linear"
    assert kernels.records[0].note == EDGE_PROJECTION_NOTE


# Building


def test_a_kernel_that_refuses_its_values_names_slot_and_cause() -> None:
    kernels = resolve(norm(_target_="marker_kernels.ScaledNorm", scale=-1.0))
    with pytest.raises(UserError, match=r"slot LayerNorm.*ValueError: scale is negative") as caught:
        kernels.model.LayerNorm(4)
    assert caught.value.problems[0].where == "model.layer_kernels.LayerNorm"


def test_a_function_that_returns_something_else_is_found_out() -> None:
    with pytest.raises(UserError, match="built a int"):
        resolve(norm(_target_="marker_kernels.make_liar")).model.LayerNorm(4)


def test_a_constructor_without_the_channels_is_what_has_to_change_not_the_argument() -> None:
    found = problem({"LayerNorm": {"_target_": "faulty_kernels.WithoutChannels", "eps": 1e-6}})
    assert found.where == "model.layer_kernels.LayerNorm"
    assert found.allowed == "faulty_kernels.WithoutChannels(eps=1e-06)"
    assert found.mend == "let its constructor take num_channels first"


@pytest.mark.parametrize("name", ["target", "_target", "Target"])
def test_target_without_its_underscores_is_mended(name: str) -> None:
    found = problem({"LayerNorm": {"_target_": "torch.nn.LayerNorm", name: "torch.nn.RMSNorm"}})
    assert found.mend == "did you mean '_target_'? model.layer_kernels.LayerNorm._target_=torch.nn.RMSNorm"
    alone = problem({"LayerNorm": {name: "torch.nn.RMSNorm"}})
    assert alone.mend == "did you mean '_target_'? model.layer_kernels.LayerNorm._target_=torch.nn.RMSNorm"
