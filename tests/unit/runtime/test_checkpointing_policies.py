"""The policies of activation checkpointing: the same numbers, other memory, alone and with compilation."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
from compiled_models import AOT, BLOCK, MODEL, assert_same, entry, prepared
from kept_bytes import Operators, kept_bytes
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.block import Block
from etesian.model.build import build_model
from etesian.runtime import offload
from etesian.runtime.checkpointing import checkpointing_of, describe_checkpointing
from etesian.runtime.prepare import prepare_model
from etesian.schema.model import ModelSettings

KINDS = ["graphtransformer", "transformer"]
POLICIES = ["full", "selective", "offload"]


def settings_of(policy: str, kind: str = "graphtransformer", way: str | None = None, **changes: Any) -> ModelSettings:
    block = {"num_heads": 2, "qk_norm": True, "gradient_checkpointing": policy}
    window = {"window_size": 1} if kind == "transformer" else {}
    compiled = [] if way is None else [entry(way, **AOT)]
    return make_settings(kind, encoder=block, processor=block | {"num_layers": 2} | window, decoder=block,
                         compile=compiled, **changes)  # fmt: skip


def rollout(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Run a model two steps forward and backward."""
    x = torch.randn(2, 2, 1, 14, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = model(x)
    second = model(torch.cat([x[:, 1:], first[:, None]], dim=1))
    loss = first.square().mean() + second.square().mean()
    return second.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture(autouse=True)
def _small_tensors_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_rollout_are_those_without(kind: str, policy: str) -> None:
    plain, _ = prepared(settings_of("none", kind))
    model, _ = prepared(settings_of(policy, kind))
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    assert {checkpointing_of(block) for block in blocks} == {policy}
    assert list(model.state_dict()) == list(plain.state_dict())
    assert_same(rollout(model), rollout(plain), 0.0 if policy != "selective" else 1e-13)
    assert_same(rollout(model), rollout(plain), 1e-13)  # a second time


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["LayerNorm", BLOCK, MODEL])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_same_where_modules_are_compiled(kind: str, way: str, policy: str) -> None:
    if (way, policy) == (MODEL, "offload"):
        pytest.skip("is refused, see test_combinations.py")
    model, compilation = prepared(settings_of(policy, kind, way))
    assert_same(rollout(model), rollout(prepared(settings_of("none", kind))[0]), 1e-12)
    compilation.check()


def test_a_compiled_block_chooses_by_operator_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="torch"):
        model, compilation = prepared(settings_of("selective", way="etesian.model.block.GraphTransformerBlock"))
        assert_same(rollout(model), rollout(prepared(settings_of("none"))[0]), 1e-12)
    assert compilation.graphs == 3
    assert "context_fn" not in caplog.text  # torch's advice, which says nothing to a user


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_repeats_no_product_and_no_attention(kind: str) -> None:
    calls = {}
    for policy in ("none", "selective", "full"):
        model, _ = prepared(settings_of(policy, kind))
        y = model(torch.randn(1, 2, 1, 14, 3, dtype=torch.float64))
        with Operators() as operators:
            y.square().mean().backward()
        calls[policy] = operators.calls
    attention = "etesian::factored_graph_attention"
    assert calls["full"]["aten::addmm"] > calls["none"]["aten::addmm"] == calls["selective"]["aten::addmm"]
    assert calls["selective"]["aten::mm"] <= calls["none"]["aten::mm"]  # some are inside of the attention
    assert calls["selective"][attention] == 0
    assert calls["selective"]["aten::native_layer_norm"] == calls["full"]["aten::native_layer_norm"] > 0
    if kind == "transformer":
        fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
        assert calls["full"][fused] > calls["selective"][fused] == 0


def kept_of_a_block(policy: str, kind: str, way: str | None) -> float:
    """Return what a block of the processor leaves behind, in numbers a node and channel."""
    settings = settings_of(policy, kind, way, num_channels=32)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    torch.manual_seed(0)
    model = build_model(settings, make_graph(30, 300), make_fields(), kernels).double()
    prepare_model(model, settings, kernels)
    block = model.get_submodule("processor.blocks.0")
    forward, kept = block.forward, []

    def measured(*args: Any) -> Tensor:
        result, grown = kept_bytes(lambda: forward(*args))
        kept.append(grown / (300 * 32 * 8))
        return result

    x = torch.randn(1, 2, 1, 30, 3, dtype=torch.float64)
    model(x).sum().backward()  # compiles
    block.forward = measured  # type: ignore[method-assign]
    model(x)
    return kept[0]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("graphtransformer", None),
        ("graphtransformer", "LayerNorm"),
        ("transformer", None),
        ("transformer", "etesian.model.self_attention.TransformerBlock"),
    ],
)
def test_memory_of_a_block(kind: str, way: str | None) -> None:
    kept = {policy: kept_of_a_block(policy, kind, way) for policy in ("none", "selective", "full")}
    assert kept["full"] < 0.2
    assert 6 < kept["selective"] < 0.75 * kept["none"]


def test_copies_and_pickles_stay_usable() -> None:
    for policy in POLICIES:
        model, _ = prepared(settings_of(policy))
        expected = rollout(model)
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert_same(rollout(made), expected, 1e-13)
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.zero_()
            assert not rollout(made)[0].equal(expected[0])
            assert_same(rollout(model), expected, 1e-13)


def test_random_numbers_are_drawn_alike() -> None:
    class Drop(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.norm(x), 0.3)

    results = []
    for policy in ("none", *POLICIES):
        model, _ = prepared(settings_of(policy))
        for block in (module for module in model.modules() if isinstance(module, Block)):
            block.norm_mlp = Drop(16).double()
        torch.manual_seed(1)
        results.append(rollout(model))
    for result in results[1:]:
        assert_same(result, results[0], 1e-13)


def test_the_policies_are_named() -> None:
    settings = make_settings(processor={"num_heads": 2, "gradient_checkpointing": "selective"},
                             decoder={"num_heads": 2, "gradient_checkpointing": True})  # fmt: skip
    assert describe_checkpointing(settings) == "processor selective, decoder full"
    assert describe_checkpointing(make_settings()) == ""


@pytest.mark.parametrize(("value", "policy"), [(True, "full"), (False, "none"), ("offload", "offload")])
def test_true_and_false_are_policies(value: object, policy: str) -> None:
    assert make_settings(encoder={"gradient_checkpointing": value}).encoder.gradient_checkpointing == policy
