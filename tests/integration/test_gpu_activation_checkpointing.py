"""On a GPU: every policy gives the same gradients, and keeps as little as it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_models import BLOCK, assert_same, entry
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.runtime import offload
from etesian.runtime.checkpointing_trial import try_checkpointing
from etesian.runtime.prepare import prepare_model
from etesian.schema.model import ModelSettings

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

POLICIES = ["full", "selective", "offload"]
INDUCTOR = {"fullgraph": True, "dynamic": False}
KERNELS = {
    "factored": "etesian.kernels.factored.FactoredGraphAttention",
    "triton": "etesian.kernels.triton_kernels.attention.TritonGraphAttention",
}
NODES = 2000


def settings_of(policy: str, kernel: str, kind: str, way: str | None = None) -> ModelSettings:
    block = {"num_heads": 4, "qk_norm": True, "gradient_checkpointing": policy}
    window = {"window_size": 100} if kind == "transformer" else {}
    return make_settings(
        kind, num_channels=128, encoder=block, decoder=block, processor=block | {"num_layers": 6} | window,
        compile=[] if way is None else [entry(way, **INDUCTOR)],
        layer_kernels={"GraphAttention": {"_target_": KERNELS[kernel]}},
    )  # fmt: skip


def prepared(settings: ModelSettings, dtype: torch.dtype) -> nn.Module:
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    torch.manual_seed(0)
    model = build_model(settings, make_graph(NODES, NODES), make_fields(), kernels).to("cuda", dtype)
    prepare_model(model, settings, kernels)
    return model


def rollout(model: nn.Module, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    x = torch.randn(1, 2, 1, NODES, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x.to("cuda", dtype)
    first = model(x)
    second = model(torch.cat([x[:, 1:], first[:, None].to(dtype)], dim=1))
    loss = first.float().square().mean() + second.float().square().mean()
    return second.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "kernel"), [("graphtransformer", "factored"), ("graphtransformer", "triton"),
                                              ("transformer", "factored")])  # fmt: skip
def test_gradients_of_a_rollout_are_those_without(
    kind: str, kernel: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 2**12)
    dtype, tolerance = (torch.float32, 1e-5) if kernel == "triton" else (torch.float64, 1e-11)
    model = prepared(settings_of(policy, kernel, kind), dtype)
    plain = rollout(prepared(settings_of("none", kernel, kind), dtype), dtype)
    for _ in range(3):  # what is left of a step must not disturb the next
        assert_same(rollout(model, dtype), plain, tolerance)


@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_blocks_in_mixed_precision(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 2**12)
    results: list[Any] = []
    for chosen in ("none", policy):
        model = prepared(settings_of(chosen, "triton", "graphtransformer", BLOCK), torch.float32)
        with torch.autocast("cuda", torch.bfloat16):
            results.append(rollout(model, torch.float32))
    assert_same(results[1], results[0], 3e-2)


def held_after_forward(policy: str, kernel: str) -> int:
    """Return the bytes of the device that a forward pass leaves behind."""
    model = prepared(settings_of(policy, kernel, "graphtransformer"), torch.float32)
    x = torch.randn(1, 2, 1, NODES, 3, device="cuda")
    model(x).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = model(x)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    y.sum().backward()
    return held


@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_after_the_forward_pass(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 2**12)
    held = {policy: held_after_forward(policy, kernel) for policy in ("none", *POLICIES)}
    assert held["full"] < 0.3 * held["none"]
    assert held["full"] < held["selective"] < 0.8 * held["none"]
    assert held["offload"] < 0.5 * held["none"]  # one block of eight, and what is no block's


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_the_kernels_of_a_gpu_are_kept(precision: Any) -> None:
    for kind, kernel in (("graphtransformer", "triton"), ("transformer", "factored")):
        settings = settings_of("selective", kernel, kind)
        kernels = resolve_kernels(settings, preset=None, overrides=[])
        try_checkpointing(settings, kernels, torch.device("cuda:0"), precision)
