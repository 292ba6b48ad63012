"""The kernels of the slot ``Attention`` compute the same function, outputs and gradients."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

from etesian.kernels.attention.flex import _KEPT_MASKS, FlexAttention, _masks, window_mask
from etesian.kernels.attention.reference import ReferenceAttention
from etesian.kernels.attention.sdpa import ScaledDotProductAttention

HEADS, CHANNELS = 3, 4
WINDOWS = [None, 0, 1, 7, 70, 299, 5000]
"""No window; itself only; less than a block; more than one; the last that leaves something out; all."""


def make_inputs(nodes: int, batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return query, key and value laid out in memory as the model does, [B, N, H, C]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, nodes, HEADS, CHANNELS)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]


def results(kernel: type[nn.Module], inputs: list[Tensor], window: int | None) -> list[Tensor]:
    """Return the output and the gradients of query, key and value."""
    out = kernel(HEADS, CHANNELS, window_size=window)(*inputs)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, cotangent)]


def assert_agree(kernel: type[nn.Module], nodes: int, window: int | None, batch: int = 2) -> None:
    inputs = make_inputs(nodes, batch)
    expected = results(ReferenceAttention, inputs, window)
    for got, want in zip(results(kernel, inputs, window), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("nodes", [1, 5, 128, 193, 300])
def test_sdpa(nodes: int, window: int | None) -> None:
    assert_agree(ScaledDotProductAttention, nodes, window)


@pytest.mark.parametrize(("nodes", "window"), [(300, 40), (300, 298), (65, 63), (257, 33), (5, 2)])
def test_sdpa_with_windows_wider_than_a_block(nodes: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etesian.kernels.attention.sdpa.LARGEST_BLOCK", 32)
    assert_agree(ScaledDotProductAttention, nodes, window)


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(1, 700), window=st.none() | st.integers(0, 150) | st.integers(0, 800), batch=st.integers(1, 3))
def test_sdpa_at_any_size(nodes: int, window: int | None, batch: int) -> None:
    assert_agree(ScaledDotProductAttention, nodes, window, batch)


@settings(max_examples=20, deadline=None)
@given(nodes=st.integers(1, 700), window=st.none() | st.integers(0, 300))
def test_flex_forward(nodes: int, window: int | None) -> None:
    inputs = [tensor.detach() for tensor in make_inputs(nodes)]  # torch has no backward pass of it on a CPU
    got = FlexAttention(HEADS, CHANNELS, window_size=window)(*inputs)
    want = ReferenceAttention(HEADS, CHANNELS, window_size=window)(*inputs)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("nodes", [1, 127, 128, 129, 300, 512])
@pytest.mark.parametrize("window", [0, 1, 127, 128, 129, 254, 255, 256, 300])
def test_the_mask_of_flex_is_that_which_torch_finds_by_looking_at_every_pair(nodes: int, window: int) -> None:
    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= window

    mine = window_mask(nodes, window, torch.device("cpu"))
    theirs = create_block_mask(near, None, None, nodes, nodes, device="cpu")
    assert mine.seq_lengths == theirs.seq_lengths
    assert torch.equal(mine.to_dense(), theirs.to_dense())
    assert torch.equal(mine.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(mine.full_kv_num_blocks, theirs.full_kv_num_blocks)


def test_a_mask_of_flex_is_made_once_and_not_kept_for_ever() -> None:
    first = window_mask(300, 5, torch.device("cpu"))
    assert window_mask(300, 5, torch.device("cpu")) is first
    assert window_mask(300, 6, torch.device("cpu")) is not first
    for window in range(3 * _KEPT_MASKS):
        window_mask(300, window, torch.device("cpu"))
    assert len(_masks) <= _KEPT_MASKS


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("kernel", [FlexAttention, ScaledDotProductAttention])
def test_inside_a_compiled_layer(kernel: type[nn.Module], window: int | None) -> None:
    inputs = [tensor.detach() for tensor in make_inputs(300)]
    module = kernel(HEADS, CHANNELS, window_size=window)
    compiled = torch.compile(lambda *tensors: 2 * module(*tensors), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), 2 * module(*inputs), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("kernel", [ReferenceAttention, ScaledDotProductAttention])
def test_in_less_precision(kernel: type[nn.Module], window: int | None, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    inputs = make_inputs(300, dtype=dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    for got, want in zip(results(kernel, inputs, window), results(ReferenceAttention, exact, window), strict=True):
        assert got.dtype == dtype
        assert ((got.double() - want).norm() / want.norm()).item() < tolerance


@pytest.mark.parametrize("kernel", [ReferenceAttention, ScaledDotProductAttention, FlexAttention])
def test_queries_and_keys_may_come_wide_from_their_norms(kernel: type[nn.Module]) -> None:
    query, key, value = (tensor.detach() for tensor in make_inputs(300, dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = kernel(HEADS, CHANNELS, window_size=7)(query, key, value.bfloat16())
    want = ReferenceAttention(HEADS, CHANNELS, window_size=7)(query, key, value)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=0, atol=5e-2)


@pytest.mark.parametrize("window", [50, 1000, 1025])
def test_memory_grows_with_the_window_not_with_the_square_of_the_nodes(window: int) -> None:
    """Saved for the backward pass, and in masks: no tensor is near N x N."""
    nodes, sizes = 6000, []
    inputs = make_inputs(nodes, batch=1, dtype=torch.float32)

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, list | tuple) else [result]:
                if isinstance(tensor, Tensor):
                    sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
            return result

    with Sizes():
        results(ScaledDotProductAttention, inputs, window)
    assert 0 < max(sizes) <= max(3 * (window + 64) ** 2, 3 * inputs[0].numel())


def test_without_a_window_no_mask_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(
        "etesian.kernels.attention.sdpa.scaled_dot_product_attention",
        lambda query, key, value, **options: given.append(options) or value,
    )
    for window in (None, 299, 5000):
        ScaledDotProductAttention(HEADS, CHANNELS, window_size=window)(*make_inputs(300))
    assert given == [{}, {}, {}]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@pytest.mark.parametrize("kernel", [ReferenceAttention, ScaledDotProductAttention, FlexAttention])
def test_copies(kernel: type[nn.Module], copied: object) -> None:
    inputs = [tensor.detach() for tensor in make_inputs(300)]
    module = kernel(HEADS, CHANNELS, window_size=3)
    module(*inputs)
    assert torch.equal(copied(module)(*inputs), module(*inputs))


# flash_attn, which runs on GPUs only: what the adapter passes to it


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[nn.Module]]:
    """The adapter, around a stand-in for the library's function as its documentation describes it."""

    def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
        assert q.dtype == k.dtype == v.dtype
        assert window_size[0] == window_size[1]
        assert softmax_scale == q.shape[-1] ** -0.5
        window = None if window_size[0] < 0 else window_size[0]
        tensors = [tensor.transpose(1, 2) for tensor in (q, k, v)]  # of [B, N, H, C]
        return ReferenceAttention(q.shape[2], q.shape[3], window_size=window)(*tensors).transpose(1, 2)

    library = ModuleType("flash_attn")
    library.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    monkeypatch.delitem(sys.modules, "etesian.kernels.attention.flash", raising=False)
    yield importlib.import_module("etesian.kernels.attention.flash").FlashAttention
    sys.modules.pop("etesian.kernels.attention.flash", None)


@pytest.mark.parametrize("window", [None, 0, 7])
def test_flash_is_called_as_it_wants(flash: type[nn.Module], window: int | None) -> None:
    inputs = make_inputs(40, dtype=torch.bfloat16)
    wide = [inputs[0].float(), inputs[1].float(), inputs[2]]
    expected = ReferenceAttention(HEADS, CHANNELS, window_size=window)(*inputs)
    for tensors in (inputs, wide):
        torch.testing.assert_close(flash(HEADS, CHANNELS, window_size=window)(*tensors), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flash_refuses_more_than_16_bits(flash: type[nn.Module], dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=r"float16 and bfloat16 only.*training.precision=bf16-mixed"):
        flash(HEADS, CHANNELS)(*make_inputs(40, dtype=dtype))
