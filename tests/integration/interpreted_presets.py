"""Presets of Liger and Triton train on a CPU, under Triton's interpreter; run by ``test_presets.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import SMALL, curve, train

from small_stores import write_store

SAME_FUNCTION = {"liger": "rmsnorm", "liger_layernorm": "torch", "liger_swiglu": None}
"""Preset of Liger to that of torch with the same function and first weights, where there is one."""

TWO_STEPS = [
    *SMALL, "training.max_epochs=null", "training.max_steps=2", "dataloader.batch_size.training=1",
    "diagnostics.scores.enabled=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("data") / "waves.zarr")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def chosen(preset: str, place: str) -> str:
    where = "" if place == "model" else f"@model.{place}.layer_kernels"
    return f"{'+' if where else ''}model/layer_kernels{where}={preset}"


def test_graph_attention_in_triton_trains_as_the_default(store: Path) -> None:
    data = f"system.input.dataset={store}"
    assert train(*TWO_STEPS, data, "training.run_id=triton", "model/layer_kernels=triton") == 0
    recorded = json.loads(Path("outputs/triton/kernels.json").read_text())
    (attention,) = [entry for entry in recorded if entry["slot"] == "GraphAttention"]
    assert (attention["library"], attention["family"]) == ("triton", "graph_attention")
    assert train(*TWO_STEPS, data, "training.run_id=plain", "model/layer_kernels=torch") == 0
    assert curve(Path("outputs/triton")) == pytest.approx(curve(Path("outputs/plain")), rel=1e-5)


@pytest.mark.parametrize("place", ["model", "encoder", "processor", "decoder"])
@pytest.mark.parametrize("preset", SAME_FUNCTION)
def test_two_steps_of_training(preset: str, place: str, store: Path) -> None:
    data = f"system.input.dataset={store}"
    assert train(*TWO_STEPS, data, "training.run_id=fused", chosen(preset, place)) == 0
    run = Path("outputs/fused")
    recorded = json.loads((run / "kernels.json").read_text())
    (norm,) = [entry for entry in recorded if (entry["component"], entry["slot"]) == (place, "LayerNorm")]
    assert norm["library"] == "liger-kernel"
    assert len(curve(run)) == 2
    if (plain := SAME_FUNCTION[preset]) is not None:
        assert train(*TWO_STEPS, data, "training.run_id=plain", chosen(plain, place)) == 0
        assert curve(run) == pytest.approx(curve(Path("outputs/plain")), rel=1e-5)
