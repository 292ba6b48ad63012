"""On a GPU: what is compiled trains as what is not, in the mixed precision of a real run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from compiled_models import BLOCK, MODEL, entry, prepared
from runs import curve, run, weights
from small_model import make_settings
from torch import nn

from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.trial import try_compilation

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

INDUCTOR = {"fullgraph": True, "dynamic": False}
WAYS = {"norms": "LayerNorm", "blocks": BLOCK, "model": MODEL}


def settings_of(way: str | None, *, checkpointed: bool = False, kernel: str = "factored.FactoredGraphAttention"):
    block = {"num_heads": 2, "gradient_checkpointing": checkpointed}
    return make_settings(
        num_channels=64,
        compile=[] if way is None else [entry(WAYS[way], **INDUCTOR)],
        layer_kernels={"GraphAttention": {"_target_": f"etesian.kernels.{kernel}"}},
        encoder=block, processor=block | {"num_layers": 2}, decoder=block,
    )  # fmt: skip


def losses_of(model: nn.Module, steps: int = 3) -> list[float]:
    """Train a small model for a few steps in bf16-mixed."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(2, 2, 1, 14, 3, generator=torch.Generator().manual_seed(0)).cuda()
    target = torch.randn(2, 1, 14, 3, generator=torch.Generator().manual_seed(1)).cuda()
    losses = []
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_trains_as_an_uncompiled_one(way: str, checkpointed: bool) -> None:
    compiled, compilation = prepared(settings_of(way, checkpointed=checkpointed), torch.float32)
    plain, _ = prepared(settings_of(None), torch.float32)
    names = list(plain.state_dict())
    losses = losses_of(compiled)
    compilation.check()
    assert compilation.graphs == {"norms": 2, "blocks": 3, "model": 1}[way]
    assert losses == pytest.approx(losses_of(plain), rel=1e-2)
    assert list(compiled.state_dict()) == names


@pytest.mark.parametrize("way", WAYS)
def test_the_trial_passes(way: str) -> None:
    settings = settings_of(way)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    compilation = try_compilation(settings, kernels, torch.device("cuda:0"), "bf16-mixed")
    assert compilation.graphs > 0


@pytest.mark.parametrize("preset", ["model/compile=norms", "model/compile=blocks"])
def test_a_run(preset: str, tmp_path: Path) -> None:
    options = ["--config-name", "debug", "system=gpu", "system.input.dataset=embedded:ncep-monthly-5deg",
               "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false", "training.max_steps=3",
               "training.precision=bf16-mixed"]  # fmt: skip

    def trained(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        return run(tmp_path, tmp_path / "cache", *options, *more, f"training.run_id={name}")

    trained("plain")
    said = trained("compiled", preset).stdout
    assert "compiled: " in said
    assert "the first batch compiled " in said
    plain, compiled = (tmp_path / "outputs" / name for name in ("plain", "compiled"))
    assert curve(compiled) == pytest.approx(curve(plain), rel=3e-2)
    assert list(weights(compiled)) == list(weights(plain))
