"""Every kind of model with every preset of torch's own kernels: it builds, is filled as the preset says, and learns."""

from __future__ import annotations

import pytest
import yaml

from etesian.commands.common import register_kinds
from etesian.places import package_config_dir
from etesian.schema.registry import kinds
from etesian.testing import ExperimentMaker

register_kinds()

GROUP = package_config_dir() / "model" / "layer_kernels"
PRESETS = ("torch", "layernorm_no_params", "rmsnorm")
QUICK = ["training.optimization.lr=0.01", "model.num_channels=32"]


def test_every_kind_has_a_config() -> None:
    assert {file.stem for file in (package_config_dir() / "model").glob("*.yaml")} == set(kinds("model"))


FIRST = ("graphtransformer", "transformer")
CASES = [(kind, preset) for kind in kinds("model") for preset in (*PRESETS, "compiled_rmsnorm")]
CASES = [(kind, preset) for kind, preset in CASES if kind in FIRST or preset != "torch"]  # test_every_kind.py has those
QUICK_CASES = [(kind, preset) for kind in FIRST for preset in PRESETS]


@pytest.mark.parametrize(
    ("kind", "preset"), [case if case in QUICK_CASES else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]
)
def test_it_is_filled_as_the_preset_says_and_learns(experiment: ExperimentMaker, kind: str, preset: str) -> None:
    attends = "qk_norm" in kinds("processor")[kind].model_fields
    qk_norm = ["model.processor.qk_norm=true"] if attends else ["model.encoder.qk_norm=true"] * (kind != "gnn")
    levels = ["graph=hierarchical"] if kind == "hierarchical" else []
    overrides = [f"model={kind}", *levels, f"model/layer_kernels={preset}", *qk_norm, *QUICK]
    run = experiment("own_data", overrides=overrides)
    assert run.config.model.kind == kind
    for slot, entry in yaml.safe_load((GROUP / f"{preset}.yaml").read_text()).items():
        for component, kernels in run.kernels.items():
            record = kernels[slot]
            assert (record.target, record.origin) == (entry["_target_"], f"preset {preset}"), component
            assert {"_target_": record.target, **record.arguments} == {
                k: v for k, v in entry.items() if k != "_compile_"
            }
            assert (record.compile is not None) == ("_compile_" in entry)
    norms = run.layers("LayerNorm")
    assert {type(layer).__name__ for layer in norms.values()} == {"RMSNorm" if "rms" in preset else "LayerNorm"}
    weights = {name.rpartition(".")[2] for name in run.state_names if name.rpartition(".")[0] in norms}
    assert weights == {"torch": {"weight", "bias"}, "layernorm_no_params": set()}.get(preset, {"weight"})
    losses = run.train(20)
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("component", ["encoder", "processor", "decoder"])
def test_a_component_takes_the_norm_of_another_preset(experiment: ExperimentMaker, component: str, preset: str) -> None:
    other = "rmsnorm" if preset != "rmsnorm" else "torch"
    entry = yaml.safe_load((GROUP / f"{other}.yaml").read_text())["LayerNorm"]
    own = f"+model.{component}.layer_kernels.LayerNorm={{_target_: {entry['_target_']}, eps: {entry['eps']}}}"
    run = experiment("own_data", overrides=[f"model/layer_kernels={preset}", own, *QUICK])
    for name, kernels in run.kernels.items():
        assert (kernels["LayerNorm"].target == entry["_target_"]) == (name == component)
    here = set(map(type, run.layers("LayerNorm", component).values()))
    there = {type(layer) for name, layer in run.layers("LayerNorm").items() if not name.startswith(component)}
    assert len(here) == len(there) == 1
    assert here.isdisjoint(there)
    assert len(run.train(1)) == 1
