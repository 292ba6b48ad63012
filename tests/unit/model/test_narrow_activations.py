"""Under autocast nothing of the size nodes x channels is wider than it has to be.

Autocast of a GPU differs from that of a CPU: its layer norms return float32. Fake tensors of a GPU, which have no
numbers, take its rules on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small_model import make_graph, make_model, make_settings
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.norms import AutocastLayerNorm
from etesian.model.features import for_products

NODES = {"num_data": 300, "num_hidden": 100}


@pytest.fixture
def autocast_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(FactoredGraphAttention, "forward", lambda self, query, *rest: torch.zeros_like(query))
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


def on_a_fake_gpu(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                fake = torch.empty(value.shape, device="cuda")
                module._parameters[name] = nn.Parameter(fake, requires_grad=False)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = torch.empty(value.shape, dtype=value.dtype, device="cuda")
    model.residual.forward = lambda y, x: y  # indexes, which takes a real GPU
    return model


def dtypes_of_layers(norm: dict[str, object]) -> dict[str, set[torch.dtype]]:
    """Return the dtypes of what each kind of layer gets and returns that has a row for every data node."""
    model = make_model(make_settings(layer_kernels={"LayerNorm": norm}, num_channels=64), make_graph(**NODES))
    found: dict[str, set[torch.dtype]] = {}

    def note(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if args[0].shape[0] == NODES["num_data"]:
            found.setdefault(type(module).__name__, set()).update({args[0].dtype, out.dtype})

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        for module in on_a_fake_gpu(model).modules():
            if isinstance(module, nn.Linear | nn.LayerNorm | nn.GELU | AutocastLayerNorm):
                module.register_forward_hook(note)
        y = model(torch.empty(1, 2, 1, NODES["num_data"], 3, device="cuda"))
    assert y.dtype == torch.float32
    return found


@pytest.mark.usefixtures("autocast_of_a_gpu")
def test_with_norms_that_keep_the_dtype_every_layer_gets_and_returns_16_bits() -> None:
    found = dtypes_of_layers({"_target_": "etesian.kernels.norms.AutocastLayerNorm"})
    assert found == {name: {torch.bfloat16} for name in ("Linear", "GELU", "AutocastLayerNorm")}


@pytest.mark.usefixtures("autocast_of_a_gpu")
def test_the_norms_of_torch_return_32_bits() -> None:
    """What the kernel above is for; where torch does otherwise one day, it may go."""
    assert torch.float32 in dtypes_of_layers({"_target_": "torch.nn.LayerNorm"})["LayerNorm"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_autocast_the_input_stays_as_it_is(dtype: torch.dtype) -> None:
    x = torch.randn(3, dtype=dtype)
    assert for_products(x) is x


def test_under_autocast_numbers_of_64_bits_stay_as_they_are() -> None:
    x = torch.randn(3, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert for_products(x) is x
        assert for_products(x.float()).dtype == torch.bfloat16


def test_what_a_norm_keeps_for_the_backward_pass_has_the_dtype_of_its_input() -> None:
    x = torch.randn(100, 8).bfloat16().requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        AutocastLayerNorm(8)(x)
    assert {t.dtype for t in kept if t.numel() >= x.numel()} == {torch.bfloat16}
