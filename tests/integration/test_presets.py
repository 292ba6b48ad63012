"""Every preset of layer kernels that is shipped: it is whole, and runs, or stops for the reason it should.

As the model's own preset, and as that of each component. Presets of Liger train in a process that has Liger
(``interpreted_presets.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from kernel_site import run, run_tests
from optional_libraries import importable, write_transformer_engine
from runs import SMALL, train

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.kernels.libraries import EXTRAS
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import COMPONENTS, resolve_kernels
from etesian.kernels.slots import SLOTS
from etesian.places import package_config_dir
from small_stores import write_store

FOLDER = package_config_dir() / "model" / "layer_kernels"
PRESETS = sorted(file.stem for file in FOLDER.glob("*.yaml"))
ON_A_CPU = ("compiled_rmsnorm", "layernorm_no_params", "mixed", "rmsnorm", "torch")
FULLGRAPH = {"fullgraph": True, "dynamic": False}
COMPILED = {"compiled_rmsnorm": "rmsnorm"}
"""Presets with a compile entry, and those that they are without it."""
LIBRARY = {
    "liger": "liger_kernel",
    "liger_layernorm": "liger_kernel",
    "liger_swiglu": "liger_kernel",
    "transformer_engine": "transformer_engine",
    "transformer_engine_rmsnorm": "transformer_engine",
    "triton": "triton",
    "triton_mixed": "triton",
}
PLACES = ("model", *COMPONENTS)
QK_NORM = [f"model.{component}.qk_norm=true" for component in COMPONENTS]


def chosen(preset: str, place: str = "model") -> str:
    """Return the override that chooses a preset for the model, or adds it to a component."""
    return f"model/layer_kernels={preset}" if place == "model" else at(place, preset)


def at(component: str, preset: str) -> str:
    return f"+model/layer_kernels@model.{component}.layer_kernels={preset}"


def key(place: str, slot: str) -> str:
    return f"model{'' if place == 'model' else f'.{place}'}.layer_kernels.{slot}"


def check(*overrides: str) -> dict[tuple[str, str], dict]:
    """Compose the default config; resolve and probe its kernels; return what each slot of each place has."""
    composed = compose("train", None, overrides)
    config = check_tree(composed)
    preset = composed.choices["model/layer_kernels"]
    kernels = resolve_kernels(config.model, preset=preset, overrides=composed.overrides)
    probe_kernels(kernels, config.model, torch.device("cpu"), config.training.precision)
    return {
        (r.component, r.slot): {"_target_": r.target, **r.arguments} | ({"_compile_": r.compile} if r.compile else {})
        for r in kernels.records
    }


def written(value: object) -> str:
    """Write a value as an override does."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {written(part)}' for name, part in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def content(preset: str) -> dict[str, dict]:
    return yaml.safe_load((FOLDER / f"{preset}.yaml").read_text())


def test_every_preset_is_tested() -> None:
    assert sorted([*ON_A_CPU, *LIBRARY]) == PRESETS
    assert set(COMPILED) <= set(ON_A_CPU)


@pytest.mark.parametrize("preset", COMPILED)
def test_a_compiled_preset_is_another_with_a_compile_entry(preset: str) -> None:
    plain = content(COMPILED[preset])
    assert content(preset) == plain | {"LayerNorm": plain["LayerNorm"] | {"_compile_": FULLGRAPH}}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_writes_out_every_slot_and_every_eps(preset: str) -> None:
    mapping = check_tree(compose("train", None, [chosen(preset)])).model.layer_kernels
    assert mapping.keys() == SLOTS.keys()
    for slot in ("LayerNorm", "QueryNorm", "KeyNorm"):
        assert mapping[slot]["eps"] in (1e-5, 1e-6)


@pytest.mark.parametrize(
    ("place", "precision"), [*((place, "32-true") for place in PLACES), ("model", "64-true"), ("model", "bf16-mixed")]
)
@pytest.mark.parametrize("preset", ON_A_CPU)
def test_it_runs_on_a_cpu(preset: str, place: str, precision: str) -> None:
    found = check(chosen(preset, place), f"training.precision={precision}", *QK_NORM)
    assert {slot: entry for (component, slot), entry in found.items() if component == place} == content(preset)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("preset", ON_A_CPU)
def test_its_norm_may_be_chosen_alone(preset: str, place: str) -> None:
    entry = content(preset)["LayerNorm"]
    found = check(f"{key(place, 'LayerNorm')}={written(entry)}")
    assert found[place, "LayerNorm"] == entry
    assert len(found) == len(SLOTS) + (place != "model")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("preset", LIBRARY)
def test_without_its_library_it_says_what_installs_it(preset: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARY[preset]
    monkeypatch.setitem(sys.modules, library, None)
    for module in ("etesian.kernels.liger", "etesian.kernels.triton_kernels.attention"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UserError) as caught:
        check(chosen(preset, place))
    distribution, extra = EXTRAS[library]
    wanting = [
        slot for slot, entry in content(preset).items() if library.partition("_")[0] in entry["_target_"].lower()
    ]
    assert {problem.where for problem in caught.value.problems} == {f"{key(place, slot)}._target_" for slot in wanting}
    assert ("GraphAttention" if preset.startswith("triton") else "LayerNorm") in wanting
    for problem in caught.value.problems:
        assert f"the library is missing ({distribution})" in problem.what
        assert problem.mend == f"pip install 'etesian[{extra}]'"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("preset", ["transformer_engine", "transformer_engine_rmsnorm"])
def test_transformer_engine_without_a_gpu_says_so(preset: str, place: str, tmp_path: Path) -> None:
    write_transformer_engine(tmp_path)
    with importable(tmp_path, "transformer_engine"), pytest.raises(UserError) as caught:
        check(chosen(preset, place))
    assert {p.where for p in caught.value.problems} == {key(place, slot) for slot in ("LayerNorm", "Linear")}
    for problem in caught.value.problems:
        assert "does not run on cpu with training.precision=32-true: building it fails: " in problem.what
        assert str(problem.mend).startswith("run on a GPU, system=gpu, or ")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["liger", "liger_layernorm", "liger_swiglu"])
def test_liger_without_a_gpu_says_so(preset: str, tmp_path: Path) -> None:
    arguments = ["kernels", "check", chosen(preset)]
    done = run("etesian", *arguments, folder=tmp_path, interpreter=False, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "slot LayerNorm of the model: " in done.stderr
    reason = (
        "does not run on cpu with training.precision=32-true: its forward pass fails: RuntimeError: 0 active drivers"
    )
    assert reason in done.stderr
    assert "run on a GPU, system=gpu, or model.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm" in done.stderr


@pytest.mark.slow
def test_graph_attention_in_triton_without_a_gpu_says_so(tmp_path: Path) -> None:
    done = run("etesian", "kernels", "check", chosen("triton"), folder=tmp_path, interpreter=False, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "slot GraphAttention of the model: etesian.kernels.triton_kernels.attention.Triton" in done.stderr
    assert "its forward pass fails: RuntimeError: the Triton kernels run on a GPU" in done.stderr
    assert "run on a GPU, system=gpu, or model.layer_kernels.GraphAttention._target_=etesian.kernels.fac" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_presets_of_liger_and_triton_train_where_those_run(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_presets.py"), tmp_path)


def test_no_norm_of_the_preset_without_parameters_has_one() -> None:
    composed = compose("train", None, ["model/layer_kernels=layernorm_no_params"])
    kernels = resolve_kernels(check_tree(composed).model, preset=None, overrides=[])
    for slot in ("LayerNorm", "QueryNorm", "KeyNorm"):
        assert not list(getattr(kernels.model, slot)(8).parameters())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("data") / "waves.zarr")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("preset", ON_A_CPU)
def test_two_steps_of_training(preset: str, place: str, store: Path, here: Path) -> None:
    two_steps = ["training.max_epochs=null", "training.max_steps=2", "diagnostics.scores.enabled=false"]
    run = [f"system.input.dataset={store}", "training.run_id=run", chosen(preset, place)]
    if preset.startswith("compiled"):  # captured, but left to PyTorch: a compiler of C++ need not be there
        run.append(f"++{key(place, 'LayerNorm')}._compile_.backend=aot_eager")
    assert train(*SMALL, *two_steps, *run) == 0
    left = here / "outputs" / "run"
    recorded = json.loads((left / "kernels.json").read_text())
    assert {entry["slot"] for entry in recorded if entry["component"] == place} == SLOTS.keys()
    saved = torch.load(left / "checkpoints" / "last.ckpt", weights_only=False)
    assert saved["global_step"] == 2
    part = "" if place == "model" else f".{place}."
    names = {name.rpartition(".")[2] for name in saved["state_dict"] if ".norm_" in name and part in name}
    of_layer_norm = {"weight", "bias"}
    of_preset = {"torch": of_layer_norm, "mixed": of_layer_norm, "layernorm_no_params": set()}
    assert names == of_preset.get(preset, {"weight"})
