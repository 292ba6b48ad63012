"""On a GPU: attention among the nodes against float64, and which kernel of torch full attention reaches.

An error is the norm of the difference over the norm of the float64 result; of the output and the three gradients.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from etesian.kernels.attention.flex import FlexAttention
from etesian.kernels.attention.reference import ReferenceAttention
from etesian.kernels.attention.sdpa import ScaledDotProductAttention

pytestmark = pytest.mark.gpu

HEADS, CHANNELS = 4, 64
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
"""Of float32, products may be taken in TF32, of 10 bits, inside the kernels."""


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Forget what was compiled: FlexAttention is compiled for each shape, and torch allows a few."""
    torch._dynamo.reset()


def make_inputs(nodes: int, dtype: torch.dtype, batch: int = 2, heads: int = HEADS) -> list[Tensor]:
    """Return query, key and value laid out in memory as the model does, [B, N, H, C]."""
    generator = torch.Generator("cuda").manual_seed(7)
    shape = (batch, nodes, heads, CHANNELS)
    return [
        torch.randn(shape, generator=generator, device="cuda").to(dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def results(kernel: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    out = kernel(*inputs)
    generator = torch.Generator("cuda").manual_seed(8)
    seed = torch.randn(out.shape, generator=generator, device="cuda").to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, seed.to(out.dtype))]


def assert_near_float64(kernel: type[nn.Module], nodes: int, window: int | None, dtype: torch.dtype) -> None:
    inputs = make_inputs(nodes, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = results(ReferenceAttention(HEADS, CHANNELS, window_size=window), exact)
    least = 0.1 * expected[0].norm()  # where a node sees itself only, queries and keys have a gradient of 0
    for got, want in zip(results(kernel(HEADS, CHANNELS, window_size=window), inputs), expected, strict=True):
        assert got.is_cuda
        assert got.dtype == dtype
        error = ((got.double() - want).norm() / torch.maximum(want.norm(), least)).item()
        assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 256])
@pytest.mark.parametrize("kernel", [ScaledDotProductAttention, FlexAttention])
def test_attention_agrees_with_float64(kernel: type[nn.Module], window: int | None, dtype: torch.dtype) -> None:
    assert_near_float64(kernel, 2562, window, dtype)


@pytest.mark.parametrize("window", [0, 1, 100, 2000])
@pytest.mark.parametrize("kernel", [ScaledDotProductAttention, FlexAttention])
def test_windows_of_any_size(kernel: type[nn.Module], window: int) -> None:
    assert_near_float64(kernel, 642, window, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 256])
@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash_attn is not installed")
def test_flash_attn_agrees_with_float64(window: int | None, dtype: torch.dtype) -> None:
    from etesian.kernels.attention.flash import FlashAttention

    assert_near_float64(FlashAttention, 2562, window, dtype)


def test_full_attention_reaches_the_flash_kernel_without_copies() -> None:
    inputs = make_inputs(2562, torch.bfloat16, batch=1, heads=16)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # any other raises
        out = ScaledDotProductAttention(16, CHANNELS)(*inputs)
    assert out.transpose(1, 2).is_contiguous()  # the heads behind the nodes again, as the projection wants them


@pytest.mark.parametrize("kernel", [ScaledDotProductAttention, FlexAttention])
def test_memory_does_not_grow_with_the_square_of_the_nodes(kernel: type[nn.Module]) -> None:
    nodes, window = 40_962, 512
    inputs = make_inputs(nodes, torch.bfloat16, batch=1, heads=2)
    module = kernel(2, CHANNELS, window_size=window)
    results(module, inputs)  # compiles
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(module, inputs)
    used = torch.cuda.max_memory_allocated() - before
    assert used < nodes**2 / 4  # bytes: a fourth of a mask of booleans
