"""The adapter of Liger's layer norm, over a stand-in that has Liger's constructor."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from kernel_site import run_tests
from small_model import make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels


class LigerLike(nn.Module):
    """A layer norm with the constructor of Liger's, its other eps and its random bias."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.randn(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape = self.weight.shape
        return nn.functional.layer_norm(hidden_states, shape, self.weight, self.bias, self.variance_epsilon)


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where Liger would be."""
    for name in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.layer_norm"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["liger_kernel.transformers.layer_norm"].LigerLayerNorm = LigerLike
    monkeypatch.setattr(LigerLike, "__module__", "liger_kernel.transformers.layer_norm")
    monkeypatch.delitem(sys.modules, "etesian.kernels.liger", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"version of {name}")


@pytest.mark.usefixtures("liger")
def test_it_begins_as_torch_does() -> None:
    mapping = {"LayerNorm": {"_target_": "etesian.kernels.liger.LigerLayerNorm"}}
    kernels = resolve_kernels(make_settings(layer_kernels=mapping), preset=None, overrides=[])
    mine, theirs = kernels.model.LayerNorm(8), nn.LayerNorm(8)
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in mine.state_dict().items())
    x = torch.randn(5, 8) * 1e-3  # small, so that eps counts
    assert torch.equal(mine(x), theirs(x))
    (record,) = [record for record in kernels.records if record.slot == "LayerNorm"]
    assert (record.family, record.library, record.version) == ("layer_norm", "liger-kernel", "version of liger-kernel")
    sys.modules.pop("etesian.kernels.liger")


def test_the_real_ones(tmp_path: Path) -> None:
    run_tests(Path(__file__).with_name("interpreted_liger.py"), tmp_path)
