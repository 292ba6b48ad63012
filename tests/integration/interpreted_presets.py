"""Presets of Liger and Triton train on a CPU, under Triton's interpreter; run by ``test_presets.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import SMALL, curve, train

from etesian import cli
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


CHUNKS = ["model.encoder.num_chunks=2", "model.decoder.num_chunks=2"]
COMPILED = "model.compile.0.options.backend=aot_eager"


@pytest.mark.parametrize(
    "options",
    [[], CHUNKS, ["model/compile=blocks", COMPILED], ["model/compile=model", COMPILED]],
    ids=["plain", "chunks", "compiled blocks", "compiled model"],
)
def test_graph_attention_in_triton_trains_as_the_default(options: list[str], store: Path) -> None:
    """Two samples a batch: copies of the edges and of their tiles."""
    steps = [option for option in TWO_STEPS if "batch_size" not in option] + ["dataloader.batch_size.training=2"]
    data = f"system.input.dataset={store}"
    assert train(*steps, data, "training.run_id=triton", "model/layer_kernels=triton", *options) == 0
    recorded = json.loads(Path("outputs/triton/kernels.json").read_text())
    (attention,) = [entry for entry in recorded if entry["slot"] == "GraphAttention"]
    assert (attention["library"], attention["family"]) == ("triton", "graph_attention")
    assert train(*steps, data, "training.run_id=plain", "model/layer_kernels=torch") == 0
    assert curve(Path("outputs/triton")) == pytest.approx(curve(Path("outputs/plain")), rel=1e-5)


def test_a_run_with_triton_is_exported_for_the_default_kernel(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"system.input.dataset={store}"
    assert train(*TWO_STEPS, data, "training.run_id=triton", "model/layer_kernels=triton", *CHUNKS) == 0
    capsys.readouterr()
    arguments = ["outputs/triton/checkpoints/last.ckpt", "-o", "exported.ckpt", "--layer-kernels", "torch"]
    assert cli.main(["checkpoint", "export", *arguments]) == 0
    said = capsys.readouterr().out
    assert "TritonGraphAttention(tune=False) -> etesian.kernels.factored.FactoredGraphAttention" in said
    assert "whole model on random numbers: " in said


def test_graph_attention_in_triton_is_checked_and_timed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen_kernel = ["model/layer_kernels=triton", "model.num_channels=16", "model.processor.num_heads=2"]
    assert cli.main(["kernels", "check", *SMALL, *chosen_kernel, f"system.input.dataset={store}"]) == 0
    kernel = "etesian.kernels.triton_kernels.attention.TritonGraphAttention"
    assert kernel in capsys.readouterr().out
    quick = ["--rows", "30", "--repeats", "2", "--min-time", "0.001", "--no-compiled", "--output", "bench.json"]
    assert cli.main(["kernels", "bench", *chosen_kernel, "--slots", "GraphAttention", *quick]) == 0
    (slot,) = json.loads(Path("bench.json").read_text())["slots"]
    (timed,) = [entry for entry in slot["kernels"] if kernel in str(entry)]
    assert timed["forward_backward_ms"] is not None, timed["reason"]


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
