"""On a GPU: ``system=h200``, one product for queries, keys and values, chunks, and encoder and decoder as one graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_models import entry
from runs import curve, run, weights
from small_model import make_fields, make_graph, make_settings
from torch import nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.runtime.prepare import prepare_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

INDUCTOR = {"fullgraph": True, "dynamic": False}
COMPONENTS = [
    entry("etesian.model.encoder.Encoder", **INDUCTOR),
    entry("etesian.model.block.Block", **INDUCTOR) | {"component": "processor"},
    entry("etesian.model.decoder.Decoder", **INDUCTOR),
]
KERNELS = {
    "LayerNorm": {"_target_": "etesian.kernels.norms.AutocastLayerNorm"},
    "GraphAttention": {"_target_": "etesian.kernels.triton_kernels.attention.TritonGraphAttention"},
}


def built(nodes: int = 2000, chunks: int = 1, compile: list | None = None, **block: object) -> nn.Module:
    """Build a model, the same each time, and prepare it."""
    shared = {"num_heads": 4} | block
    mapper = shared | {"num_chunks": chunks}
    settings = make_settings(
        num_channels=256, compile=compile or [], layer_kernels=KERNELS,
        encoder=mapper, processor=shared | {"num_layers": 2}, decoder=mapper,
    )  # fmt: skip
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    torch.manual_seed(0)
    model = build_model(settings, make_graph(nodes, nodes // 10), make_fields(), kernels).cuda()
    prepare_model(model, settings, kernels)
    return model


def trained(model: nn.Module, nodes: int = 2000) -> tuple[list[float], int]:
    """Return the losses of a few steps in bf16-mixed, and the most bytes that the last one took beside what stays."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(1, 2, 1, nodes, 3, generator=torch.Generator().manual_seed(0)).cuda()
    target = torch.randn(1, 1, nodes, 3, generator=torch.Generator().manual_seed(1)).cuda()
    losses, peak = [], 0
    for _ in range(3):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x) - target).square().mean()
        loss.backward()
        peak = torch.cuda.max_memory_allocated() - before
        optimizer.step()
        losses.append(loss.item())
    return losses, peak


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("compile", [[], COMPONENTS], ids=["", "components"])
def test_fused_projections_train_as_separate_ones(compile: list, checkpointed: bool) -> None:
    expected, _ = trained(built())
    found, _ = trained(built(compile=compile, fuse_projections=True, gradient_checkpointing=checkpointed))
    assert found == pytest.approx(expected, rel=1e-2)


def test_chunks_take_less_memory() -> None:
    nodes = 20_000
    expected, whole = trained(built(nodes, gradient_checkpointing=True), nodes)
    found, parted = trained(built(nodes, chunks=8, gradient_checkpointing=True), nodes)
    assert found == pytest.approx(expected, rel=1e-2)
    assert parted < 0.6 * whole


def test_a_run_with_all_that_it_sets(tmp_path: Path) -> None:
    options = ["--config-name", "debug", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false",
               "training.deterministic=false", "training.max_steps=3", "model.num_channels=32"]  # fmt: skip
    run(tmp_path, tmp_path / "cache", *options, "system=gpu", "training.precision=bf16-mixed", "training.run_id=plain")
    said = run(tmp_path, tmp_path / "cache", *options, "system=h200", "training.run_id=h200").stdout
    assert "query, key, value: one product" in " ".join(said.split())
    assert "compiled: Block (3 modules, fullgraph, dynamic=False)" in said
    plain, large = (tmp_path / "outputs" / name for name in ("plain", "h200"))
    assert curve(large) == pytest.approx(curve(plain), rel=3e-2)
    assert list(weights(large)) == list(weights(plain))
