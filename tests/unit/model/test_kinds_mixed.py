"""Encoder, processor and decoder of any kinds make a model: members apart, chunks, checkpointing, every weight used."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from small_model import WITHOUT_HEADS, make_model, make_settings
from torch import nn

from etesian.model.block import Block
from etesian.runtime.checkpointing import apply_activation_checkpointing, apply_selective_checkpointing
from etesian.schema.model import ModelSettings
from etesian.schema.registry import kinds

CHOICES = list(product(kinds("encoder"), kinds("processor"), kinds("decoder")))


def settings_of(encoder: str, processor: str, decoder: str, **component: object) -> ModelSettings:
    chosen = {"encoder": encoder, "processor": processor, "decoder": decoder}
    blocks = {
        name: {"kind": kind, **({} if kind in WITHOUT_HEADS else {"num_heads": 2}), **component}
        for name, kind in chosen.items()
    }
    return make_settings(processor, **blocks)


def randomised(settings: ModelSettings) -> nn.Module:
    model = make_model(settings).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def make_input() -> torch.Tensor:
    return torch.randn(2, 2, 2, 14, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("encoder", "processor", "decoder"), CHOICES)
def test_any_kinds_make_a_model(encoder: str, processor: str, decoder: str) -> None:
    model, x = randomised(settings_of(encoder, processor, decoder)), make_input()
    y = model(x)
    assert y.shape == (2, 2, 14, 3)
    alone = torch.stack([torch.cat([model(x[b, None, :, e, None]) for e in range(2)], dim=1)[0] for b in range(2)])
    torch.testing.assert_close(y, alone, rtol=0, atol=1e-11)
    y.square().mean().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in idle if not name.endswith(("key.bias", "edge.bias"))] == []


@pytest.mark.parametrize("policy", ["full", "selective"])
@pytest.mark.parametrize(
    ("encoder", "processor", "decoder"), [(k, k, k) for k in kinds("encoder")] + [("gnn", "hierarchical", "gnn")]
)
def test_chunks_and_checkpointing_change_nothing(encoder: str, processor: str, decoder: str, policy: str) -> None:
    plain = randomised(settings_of(encoder, processor, decoder))
    settings = settings_of(encoder, processor, decoder, gradient_checkpointing=policy)
    chunked = {name: getattr(settings, name).model_copy(update={"num_chunks": 3}) for name in ("encoder", "decoder")}
    settings = settings.model_copy(update=chunked)
    model = randomised(settings)
    assert apply_selective_checkpointing(model, settings) + apply_activation_checkpointing(model, settings) == len(
        [module for module in model.modules() if isinstance(module, Block)]
    )
    results = [torch.autograd.grad(m(make_input()).square().sum(), list(m.parameters())) for m in (plain, model)]
    for (name, _), one, other in zip(plain.named_parameters(), *results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_the_blocks_of_a_graph_network_compile_as_one_graph() -> None:
    model, x = randomised(settings_of("gnn", "gnn", "gnn")), make_input()
    expected = model(x)
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.forward = torch.compile(block.forward, backend="eager", fullgraph=True)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)
