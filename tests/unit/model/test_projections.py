"""Queries, keys and values in one product: the same numbers, names and gradients as by separate layers."""

from __future__ import annotations

import pytest
import torch
from compiled_models import AOT, BLOCK, entry
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.resolve import resolve_kernels
from etesian.model.projections import project
from etesian.runtime.prepare import prepare_model

KINDS = ("graphtransformer", "transformer")
NO_BIAS = {"layer_kernels": {"Linear": {"_target_": "torch.nn.Linear", "bias": False}}}


def settings(kind: str, fused: bool, block: dict[str, object] | None = None, **sections: object):
    shared = {"num_heads": 2, "mlp_hidden_ratio": 2.0, "fuse_projections": fused} | (block or {})
    processor = shared | {"num_layers": 2} | ({"window_size": 1} if kind == "transformer" else {})
    return make_settings(kind, encoder=shared, processor=processor, decoder=shared, **sections)


def randomised(kind: str, fused: bool, **changes: object) -> nn.Module:
    """Build a model in float64, prepare it as its settings say, and give it the same weights each time."""
    chosen = settings(kind, fused, **changes)
    model = make_model(chosen).double()
    prepare_model(model, chosen, resolve_kernels(chosen, preset=None, overrides=[]))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def run(model: nn.Module) -> dict[str, Tensor]:
    """Return the output and every gradient."""
    x = torch.randn(2, 2, 1, 14, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(x)
    y.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    return {"output": y.detach()} | {name: p.grad for name, p in model.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


CASES = {
    "plain": {},
    "qk_norm": {"block": {"qk_norm": True}},
    "no bias": NO_BIAS,
    "recomputed": {"block": {"gradient_checkpointing": True}},
    "compiled and recomputed": {"block": {"gradient_checkpointing": True}, "compile": [entry(BLOCK, **AOT)]},
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * ("compiled" in name)) for name in CASES]
)
@pytest.mark.parametrize("kind", KINDS)
def test_output_and_gradients_are_those_of_separate_layers(kind: str, case: str) -> None:
    plain = {name: value for name, value in CASES[case].items() if name != "compile"}
    separate, fused = randomised(kind, False, **plain), randomised(kind, True, **CASES[case])
    assert list(fused.state_dict()) == list(separate.state_dict())
    assert_same(run(fused), run(separate))


def test_fused_projections_are_views_of_one_tensor_and_one_product() -> None:
    layers = [nn.Linear(8, 4), nn.Linear(8, 6)]
    first, second = project(torch.randn(5, 8), layers, fused=True)
    assert first.shape == (5, 4)
    assert second.shape == (5, 6)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_the_attention_gets_views(monkeypatch: pytest.MonkeyPatch) -> None:
    strides = []

    def spy(self: FactoredGraphAttention, query: Tensor, key: Tensor, value: Tensor, *rest: object) -> Tensor:
        strides.append([t.stride() for t in (query, key, value)])
        return attend(self, query, key, value, *rest)

    attend = FactoredGraphAttention.forward
    monkeypatch.setattr(FactoredGraphAttention, "forward", spy)
    make_model(settings("graphtransformer", True))(torch.randn(1, 2, 1, 14, 3))
    ends, inside = [(32, 8, 1)] * 3, [(64, 8, 1)] * 3  # 16 channels: of 2 or of 4 layers
    assert strides == [ends, inside, inside, ends]


def test_under_autocast_they_are_of_16_bits() -> None:
    layers = [nn.Linear(8, 4), nn.Linear(8, 4)]
    x = torch.randn(5, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused, separate = project(x, layers, fused=True), project(x, layers, fused=False)
    assert {t.dtype for t in (*fused, *separate)} == {torch.bfloat16}
    for one, other in zip(fused, separate, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    torch.stack(fused).float().sum().backward()
    assert {p.grad.dtype for layer in layers for p in layer.parameters()} == {torch.float32}


def test_components_choose_for_themselves() -> None:
    block = {"num_heads": 2, "fuse_projections": True}
    model = make_model(make_settings(decoder=block))
    chosen = [model.encoder.block, *model.processor.blocks, model.decoder.block]
    assert [part.fuse_projections for part in chosen] == [False, False, False, True]
