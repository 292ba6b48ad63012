"""Small models that are compiled, and the mistakes that one can make in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.runtime.compile import Compilation
from etesian.runtime.prepare import prepare_model
from etesian.runtime.trial import try_compilation
from etesian.schema.model import ModelSettings

BLOCK, MODEL = "etesian.model.block.Block", "etesian.model.base.Model"
EAGER = {"fullgraph": True, "dynamic": False, "backend": "eager"}
"""Captured, and run as it is: quick."""
AOT = EAGER | {"backend": "aot_eager"}
"""Captured with its backward pass, and run as it is."""


def entry(name: str, **options: Any) -> dict[str, Any]:
    """Return an entry of ``model.compile``: a class where there is a dot, a slot otherwise."""
    return {"module" if "." in name else "kernel": name, "options": options or EAGER}


def compiled_slot(target: str, **options: Any) -> dict[str, Any]:
    """Return a slot's mapping with its compile entry."""
    return {"_target_": target, "_compile_": options or EAGER}


def prepared(settings: ModelSettings, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Compilation]:
    """Build a small model, the same each time, and prepare it as its settings say."""
    model = make_model(settings).to(dtype)
    return model, prepare_model(model, settings, resolve_kernels(settings, preset=None, overrides=[]))


def tried(device: str = "cpu", **sections: Any) -> Compilation:
    """Try what a small model's settings ask to compile, as the door does."""
    settings = make_settings(**sections)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    return try_compilation(settings, kernels, torch.device(device), "32-true")


def output_and_gradients(model: nn.Module, batch: int = 2) -> tuple[Tensor, list[Tensor]]:
    """Run a small model forward and backward on an input that is the same each time."""
    dtype = next(model.parameters()).dtype
    x = torch.randn(batch, 2, 1, 14, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    y = model(x)
    return y.detach(), list(torch.autograd.grad(y.square().mean(), list(model.parameters())))


def assert_same(got: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], tolerance: float) -> None:
    """Compare outputs and gradients; a gradient is measured by the largest of all."""
    assert (got[0] - expected[0]).abs().max() <= tolerance * expected[0].abs().max()
    scale = max(gradient.abs().max() for gradient in expected[1])
    for one, other in zip(got[1], expected[1], strict=True):
        assert (one - other).abs().max() <= tolerance * scale


class Idle(nn.Module):
    """A norm that does nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x


class Breaks(nn.Module):
    """A norm that no compiler can follow into."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    @torch.compiler.disable
    def scale(self, x: Tensor) -> Tensor:
        return x * self.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x - x.mean(-1, keepdim=True)) + 0.0


class ModuleWithinModule(nn.Module):
    """A norm made of a norm of its own class."""

    def __init__(self, width: int, deep: bool = True) -> None:
        super().__init__()
        self.inner = ModuleWithinModule(width, False) if deep else nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class FewRowsOnly(nn.Module):
    """A norm that fails outside of the compiler's reach."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 6:  # more rows than the probe of the kernels has
            raise ValueError("too many rows")
        return x * self.weight


def shapes(width: int, count: int) -> Sequence[Tensor]:
    """Return inputs of so many different numbers of rows."""
    return [torch.randn(rows, width, requires_grad=True) for rows in range(2, 2 + count)]
