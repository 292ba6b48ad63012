"""Every preset of layer kernels that is shipped: it is whole, and runs, or stops for the reason it should."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from etesian import cli
from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.kernels.libraries import EXTRAS
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import resolve_kernels
from etesian.kernels.slots import SLOTS
from etesian.places import package_config_dir

PRESETS = sorted(file.stem for file in (package_config_dir() / "model" / "layer_kernels").glob("*.yaml"))
ON_A_CPU = ("layernorm_no_params", "rmsnorm", "torch")
LIBRARY = {"liger": "liger_kernel", "transformer_engine": "transformer_engine"}


def check(preset: str, *overrides: str) -> dict[str, str]:
    """Compose the default config with a preset; resolve and probe its kernels; return the target of each slot."""
    composed = compose("train", None, [f"model/layer_kernels={preset}", *overrides])
    config = check_tree(composed)
    kernels = resolve_kernels(config.model, preset=preset, overrides=composed.overrides)
    probe_kernels(kernels, config.model, torch.device("cpu"), config.training.precision)
    assert {record.origin for record in kernels.records} == {f"preset {preset}"}
    return {record.slot: record.target for record in kernels.records}


def test_every_preset_is_tested() -> None:
    assert sorted([*ON_A_CPU, *LIBRARY]) == PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_writes_out_every_slot_and_every_eps(preset: str) -> None:
    mapping = check_tree(compose("train", None, [f"model/layer_kernels={preset}"])).model.layer_kernels
    assert mapping.keys() == SLOTS.keys()
    for slot in ("LayerNorm", "QueryNorm", "KeyNorm"):
        assert mapping[slot]["eps"] in (1e-5, 1e-6)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("preset", ON_A_CPU)
def test_it_runs_on_a_cpu(preset: str, precision: str) -> None:
    norms = [f"model.{component}.qk_norm=true" for component in ("encoder", "processor", "decoder")]
    targets = check(preset, f"training.precision={precision}", *norms)
    assert targets["LayerNorm"] == ("torch.nn.RMSNorm" if preset == "rmsnorm" else "torch.nn.LayerNorm")


@pytest.mark.parametrize("preset", LIBRARY)
def test_without_its_library_it_says_what_installs_it(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LIBRARY[preset], None)
    with pytest.raises(UserError) as caught:
        check(preset)
    (problem,) = caught.value.problems
    distribution, extra = EXTRAS[LIBRARY[preset]]
    assert f"the library is missing ({distribution})" in problem.what
    assert problem.mend == f"pip install 'etesian[{extra}]'"
    assert problem.where == "model.layer_kernels.LayerNorm._target_"


def test_liger_without_a_gpu_says_so() -> None:
    pytest.importorskip("liger_kernel")
    with pytest.raises(UserError) as caught:
        check("liger")
    (problem,) = caught.value.problems
    assert "slot LayerNorm of the model: " in problem.what
    assert "does not run on cpu with training.precision=32-true: " in problem.what
    assert str(problem.mend).startswith("run on a GPU, system=gpu, or model.layer_kernels.LayerNorm._target_=")


def test_no_norm_of_the_preset_without_parameters_has_one() -> None:
    composed = compose("train", None, ["model/layer_kernels=layernorm_no_params"])
    kernels = resolve_kernels(check_tree(composed).model, preset=None, overrides=[])
    for slot in ("LayerNorm", "QueryNorm", "KeyNorm"):
        assert not list(getattr(kernels.model, slot)(8).parameters())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def here(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to train in; what training sets for the whole process is set back."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("ETESIAN_CACHE", str(cache))
    monkeypatch.setattr(sys, "argv", ["anemoi-training"])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize("preset", ON_A_CPU)
def test_two_steps_of_training(preset: str, here: Path) -> None:
    off = ["diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false"]
    run = ["training.max_steps=2", "training.run_id=run", f"model/layer_kernels={preset}", *off]
    assert cli.main(["train", "--config-name", "debug", *run]) == 0
    left = here / "outputs" / "run"
    recorded = {entry["slot"]: entry for entry in json.loads((left / "kernels.json").read_text())}
    assert recorded["LayerNorm"]["origin"] == f"preset {preset}"
    saved = torch.load(left / "checkpoints" / "last.ckpt", weights_only=False)
    assert saved["global_step"] == 2
    names = {name.rpartition(".")[2] for name in saved["state_dict"] if ".norm_" in name}
    assert names == {"torch": {"weight", "bias"}, "rmsnorm": {"weight"}, "layernorm_no_params": set()}[preset]
