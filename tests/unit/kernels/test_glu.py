"""Gated MLPs against their formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from small_model import make_model, make_settings
from torch import Tensor

from etesian.errors import UserError
from etesian.kernels.families import family_of
from etesian.kernels.resolve import resolve_kernels

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "GLU": lambda g: 1 / (1 + torch.exp(-g)),
    "SwiGLU": lambda g: g / (1 + torch.exp(-g)),
    "GeGLU": lambda g: g * 0.5 * (1 + torch.erf(g / math.sqrt(2))),
    "ReGLU": lambda g: torch.where(g > 0, g, torch.zeros_like(g)),
}


def mapping(kind: str) -> dict:
    return {"MLP": {"_target_": f"etesian.kernels.glu.{kind}"}}


def build(kind: str, **slots: dict) -> torch.nn.Module:
    kernels = resolve_kernels(make_settings(layer_kernels=mapping(kind) | slots), preset=None, overrides=[])
    return kernels.model.MLP(3, 7, 2, layer_kernels=kernels.model).double()


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_it_is_the_formula(kind: str) -> None:
    mlp, x = build(kind), torch.randn(4, 5, 3, dtype=torch.float64)
    weight, bias = mlp.linear_in.weight, mlp.linear_in.bias
    gate, value = x @ weight[:7].T + bias[:7], x @ weight[7:].T + bias[7:]
    expected = (ACTIVATIONS[kind](gate) * value) @ mlp.linear_out.weight.T + mlp.linear_out.bias
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-12)
    assert mlp(x).shape == (4, 5, 2)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_its_gradients_are_those_of_finite_differences(kind: str) -> None:
    torch.manual_seed(1)
    mlp, x = build(kind), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: mlp(x), (x, *mlp.parameters()))


def test_its_linears_come_from_the_mapping() -> None:
    mlp = build("SwiGLU", Linear={"_target_": "torch.nn.Linear", "bias": False})
    assert dict(mlp.named_parameters()).keys() == {"linear_in.weight", "linear_out.weight"}
    assert mlp.linear_in.weight.shape == (14, 3)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_each_kind_is_a_family_of_its_own(kind: str) -> None:
    assert family_of(f"etesian.kernels.glu.{kind}") == kind.lower()


def test_the_record_says_where_the_slot_activation_is_not_used() -> None:
    def note(**sections: object) -> str:
        records = resolve_kernels(make_settings(**sections), preset=None, overrides=[]).records
        return {record.slot: record.note for record in records if record.component == "model"}["Activation"]

    assert note(layer_kernels=mapping("GLU")) == "not used: the MLP has its own"
    assert note(processor={"num_heads": 2, "layer_kernels": mapping("GeGLU")}) == "used in encoder, decoder"
    assert note() == ""


def test_the_gelu_may_be_the_approximation_by_tanh() -> None:
    slot = {"MLP": {"_target_": "etesian.kernels.glu.GeGLU", "approximate": "tanh"}}
    kernels = resolve_kernels(make_settings(layer_kernels=slot), preset=None, overrides=[]).model
    gate = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    mlp = kernels.MLP(3, 7, 2, layer_kernels=kernels)
    torch.testing.assert_close(mlp.activation(gate), expected, rtol=1e-12, atol=1e-12)
    assert (build("GeGLU").activation(gate) - expected).abs().max() > 1e-4


def test_another_approximation_is_refused() -> None:
    slot = {"MLP": {"_target_": "etesian.kernels.glu.GeGLU", "approximate": "erf"}}
    kernels = resolve_kernels(make_settings(layer_kernels=slot), preset=None, overrides=[]).model
    with pytest.raises(UserError, match=r"slot MLP.*approximate is 'erf', where 'none' or 'tanh' is due"):
        kernels.MLP(3, 7, 2, layer_kernels=kernels)


def test_a_model_runs_with_it() -> None:
    model = make_model(make_settings(layer_kernels=mapping("SwiGLU")))
    model(torch.randn(1, 2, 1, 14, 3)).sum().backward()
    assert {type(module).__name__ for module in model.modules() if "GLU" in type(module).__name__} == {"SwiGLU"}
    assert all(p.grad is not None for name, p in model.named_parameters() if ".mlp." in name)
