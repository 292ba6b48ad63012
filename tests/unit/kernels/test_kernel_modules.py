"""The kernels that the project provides, their families and the record."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console
from small_model import make_settings

from etesian.kernels.families import family_of, register_family
from etesian.kernels.mlp import MLP
from etesian.kernels.norms import AutocastLayerNorm, AutocastRMSNorm
from etesian.kernels.record import from_json, table, to_json
from etesian.kernels.resolve import resolve_kernels


def resolved(**changes: object):
    return resolve_kernels(make_settings(**changes), preset=None, overrides=[])


def test_autocast_layer_norm_is_a_layer_norm() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    mine, theirs = AutocastLayerNorm(8, eps=1e-3).double(), torch.nn.LayerNorm(8, eps=1e-3).double()
    torch.testing.assert_close(mine(x), theirs(x))
    assert set(mine.state_dict()) == set(theirs.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_autocast_layer_norm_returns_the_dtype_of_its_input(dtype: torch.dtype, autocast: bool) -> None:
    x = torch.randn(64, 8).to(dtype)
    norm = AutocastLayerNorm(8, bias=False)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        y = norm(x)
    assert y.dtype == dtype
    exact = torch.nn.functional.layer_norm(x.double(), (8,))
    assert (y.double() - exact).norm() / exact.norm() < torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, {"weight", "bias"}), ({"bias": False}, {"weight"}), ({"elementwise_affine": False}, set())],
)
def test_autocast_layer_norm_has_the_parameters_asked_for(options: dict, names: set) -> None:
    assert set(dict(AutocastLayerNorm(8, **options).named_parameters())) == names


def test_autocast_rms_norm_is_an_rms_norm() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    mine, theirs = AutocastRMSNorm(8, eps=1e-3).double(), torch.nn.RMSNorm(8, eps=1e-3).double()
    torch.testing.assert_close(mine(x), theirs(x))
    assert set(mine.state_dict()) == set(theirs.state_dict())
    assert not AutocastRMSNorm(8, elementwise_affine=False).state_dict()


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("kind", [AutocastLayerNorm, AutocastRMSNorm])
def test_norms_of_16_bits_are_those_of_32_rounded(kind: type, autocast: bool) -> None:
    norm = kind(8)
    torch.nn.init.normal_(norm.weight)
    x, seed = torch.randn(64, 8).bfloat16(), torch.randn(64, 8).bfloat16()
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        leaf = x.to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            y = norm(leaf)
        assert y.dtype == dtype
        gradients = torch.autograd.grad(y, [leaf, *norm.parameters()], seed.to(dtype))
        assert [g.dtype for g in gradients] == [dtype] + [torch.float32] * (len(gradients) - 1)
        found[dtype] = [y.detach(), *gradients]
    for narrow, wide in zip(found[torch.bfloat16], found[torch.float32], strict=True):
        torch.testing.assert_close(narrow, wide.to(narrow.dtype), rtol=0, atol=0)


def test_a_norm_with_parameters_of_16_bits_computes_in_32() -> None:
    x = torch.randn(64, 8)
    for kind in (AutocastLayerNorm, AutocastRMSNorm):
        norm = kind(8).bfloat16()
        assert norm(x.bfloat16()).dtype == torch.bfloat16
        norm(x.bfloat16()).float().sum().backward()
        assert norm.weight.grad.dtype == torch.bfloat16


def test_mlp_is_linear_activation_linear_of_the_mapping() -> None:
    mapping = {
        "Linear": {"_target_": "torch.nn.Linear", "bias": False},
        "Activation": {"_target_": "torch.nn.LeakyReLU", "negative_slope": 0.5},
    }
    mlp = MLP(3, 7, 2, layer_kernels=resolved(layer_kernels=mapping).model)
    x = torch.randn(4, 5, 3)
    hidden = x @ mlp.linear_in.weight.T
    expected = torch.where(hidden > 0, hidden, 0.5 * hidden) @ mlp.linear_out.weight.T
    torch.testing.assert_close(mlp(x), expected)
    assert mlp(x).shape == (4, 5, 2)


def test_families() -> None:
    assert family_of("torch.nn.LayerNorm") == "layer_norm"
    assert family_of("torch.nn.modules.normalization.RMSNorm", torch.nn.RMSNorm) == "rms_norm"
    assert family_of("mylib.Norm") == "custom:mylib.Norm"

    class Derived(torch.nn.Linear):
        pass

    assert family_of("mylib.Derived", Derived) == "custom:mylib.Derived"


def test_a_family_is_declared_once() -> None:
    register_family("torch.nn.Linear", "linear")
    with pytest.raises(ValueError, match="family 'linear' already"):
        register_family("torch.nn.Linear", "other")


def test_the_table_shows_what_runs() -> None:
    kernels = resolved(processor={"num_heads": 2, "qk_norm": True, "num_layers": 1})
    screen = io.StringIO()
    Console(width=220, file=screen).print(table(kernels.records))
    lines = [line.strip() for line in screen.getvalue().splitlines()]

    def facts(slot: str) -> str:
        """What stands beside a slot and in the line below it."""
        (position,) = [number for number, line in enumerate(lines) if line.split(" ")[0] == slot]
        return f"{lines[position]} {lines[position + 1]}"

    assert "edge projection: inside GraphAttention" in facts("Linear")
    assert f"torch {torch.__version__.split('+')[0]}" in facts("Linear")
    assert "etesian.kernels.norms.AutocastLayerNorm(eps=1e-05, bias=False)" in facts("QueryNorm")
    assert "used in processor (qk_norm)" in facts("QueryNorm")
    assert "graph_attention" in facts("GraphAttention")
    assert "default" in facts("GraphAttention")


def test_norms_of_queries_and_keys_that_nothing_uses_are_marked() -> None:
    notes = {record.slot: record.note for record in resolved().records}
    assert notes["QueryNorm"] == notes["KeyNorm"] == "not used: qk_norm is false"


def test_the_table_is_short() -> None:
    """What nothing uses takes a line together, and so does a component's kernel that stands above already."""
    own = {"layer_kernels": {"LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-5}}, "num_heads": 2}
    other = {"layer_kernels": {"LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-3}}, "num_heads": 2}
    kernels = resolved(encoder=own, decoder=other, layer_kernels=own["layer_kernels"])
    screen = io.StringIO()
    Console(width=220, file=screen).print(table(kernels.records))
    lines = [line.strip() for line in screen.getvalue().splitlines() if line.strip()]
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines}
    assert rows["encoder.LayerNorm"] == "as LayerNorm, config"
    assert rows["decoder.LayerNorm"] == "torch.nn.LayerNorm(eps=0.001)"
    assert rows["not used"].startswith("QueryNorm, KeyNorm (qk_norm is false); Attention (nothing in a model of kind")
    assert sum("not used" in line for line in lines) == 1


def test_records_survive_json() -> None:
    records = resolved().records
    assert from_json(json.loads(json.dumps(to_json(records)))) == records
