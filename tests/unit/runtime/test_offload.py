"""Offloading: what is moved, when the device's memory is given up, and what comes back. On a CPU copies are at once."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from etesian.runtime import offload
from etesian.runtime.device import CopyStream
from etesian.runtime.offload import OffloadChain, Stage, run_offloaded


@pytest.fixture(autouse=True)
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Count the bytes of what is moved; small tensors are too."""
    counts: dict[str, list[int]] = {"to_host": [], "to_device": []}
    for name, sizes in counts.items():
        copy = getattr(CopyStream, name)

        def counted(self: CopyStream, source: Tensor, copy=copy, sizes=sizes) -> Tensor:
            sizes.append(source.nbytes)
            return copy(self, source)

        monkeypatch.setattr(CopyStream, name, counted)
    monkeypatch.setattr(offload, "SMALLEST", 0)
    return counts


class Layer(nn.Module):
    """A product whose input is needed by two operators, and a function that needs its result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.one(x) + self.other(x))


def chained(layers: list[Layer], x: Tensor, chain: OffloadChain) -> Tensor:
    for layer in layers:
        x = run_offloaded(chain, layer.forward, layer, x)
    return x


@pytest.fixture
def layers() -> list[Layer]:
    torch.manual_seed(0)
    return [Layer() for _ in range(4)]


def plain(layers: list[Layer], x: Tensor) -> list[Tensor]:
    y = x
    for layer in layers:
        y = layer(y)
    return list(torch.autograd.grad(y.sum(), [x, *(p for layer in layers for p in layer.parameters())]))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4, requires_grad=True)


def test_gradients_come_out_alike_step_after_step(layers: list[Layer], x: Tensor) -> None:
    chain = OffloadChain()
    for _ in range(2):
        y = chained(layers, x, chain)
        got = torch.autograd.grad(y.sum(), [x, *(p for layer in layers for p in layer.parameters())])
        for one, other in zip(got, plain(layers, x), strict=True):
            assert torch.equal(one, other)


def test_memory_that_is_saved_twice_is_moved_once_and_parameters_never(
    layers: list[Layer], x: Tensor, moved: dict[str, list[int]]
) -> None:
    y = chained(layers, x, OffloadChain())
    assert moved["to_host"] == [3 * 4 * 4] * 8  # the input and the result of each layer
    y.sum().backward()
    assert moved["to_device"] == [3 * 4 * 4] * 6  # the last layer's are still there


def test_a_stage_leaves_when_the_next_has_run_and_is_fetched_when_the_next_begins(
    layers: list[Layer], x: Tensor
) -> None:
    chain, stages, there = OffloadChain(), [], []

    def look(_: Tensor) -> None:
        there.append([sum(held.device is not None for held in stage.alive()) for stage in stages])

    y = x
    for layer in layers:
        y = run_offloaded(chain, layer.forward, layer, y)
        y.register_hook(look)  # before the backward pass of the layer
        assert chain.latest is not None
        stages.append(chain.latest)
        there.append([sum(held.device is not None for held in stage.alive()) for stage in stages])
    assert there == [[2], [0, 2], [0, 0, 2], [0, 0, 0, 2]]
    there.clear()
    y.sum().backward()
    assert there == [[0, 0, 0, 2], [0, 0, 2, 0], [0, 2, 0, 0], [2, 0, 0, 0]]


def test_nothing_is_held_after_the_backward_pass(layers: list[Layer], x: Tensor) -> None:
    chain = OffloadChain()
    y = chained(layers, x, chain)
    assert chain.latest is not None
    held = [weakref.ref(stored) for stored in chain.latest.alive()]
    assert held
    y.sum().backward()
    del y
    gc.collect()
    assert not any(reference() for reference in held)
    assert chain.latest.copied == []


def test_a_graph_may_be_gone_through_twice(layers: list[Layer], x: Tensor) -> None:
    y = chained(layers, x, OffloadChain())
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(first, second)


def test_without_gradients_nothing_is_moved(layers: list[Layer], x: Tensor, moved: dict[str, list[int]]) -> None:
    chain = OffloadChain()
    with torch.no_grad():
        chained(layers, x, chain)
    assert moved["to_host"] == []
    assert chain.latest is None


def test_small_tensors_and_whole_numbers_stay(monkeypatch: pytest.MonkeyPatch, moved: dict[str, list[int]]) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 100)
    stage = Stage(OffloadChain(), set())
    small, numbers, large = torch.ones(24), torch.arange(1000), torch.ones(25)
    assert stage.pack(small) is small
    assert stage.pack(numbers) is numbers
    assert stage.pack(large) is not large
    assert moved["to_host"] == [100]


def test_parts_of_one_memory_come_back_as_they_were() -> None:
    stage = Stage(OffloadChain(), set())
    whole = torch.arange(24.0).view(4, 6)
    views = [whole.t(), whole[1:, ::2], whole.view(-1)[5:]]
    packed = [stage.pack(view) for view in views]
    assert len(stage.alive()) == 1
    for view, kept in zip(views, packed, strict=True):
        assert torch.equal(stage.unpack(kept), view)
        assert stage.unpack(kept).stride() == view.stride()


def test_a_change_in_place_after_saving_is_an_error() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.exp()
        y.add_(1)
        return y

    with pytest.raises(RuntimeError, match="changed in place after it was saved"):
        run_offloaded(OffloadChain(), forward, nn.Identity(), torch.ones(3, requires_grad=True))
