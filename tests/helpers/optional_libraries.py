"""Optional libraries that are not installed: a stand-in for one, and imports that leave no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADAPTER = "etesian.kernels.liger"

TRANSFORMER_ENGINE = """
import torch


class Linear(torch.nn.Module):
    def __init__(
        self, in_features, out_features, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None,
        tp_size=1, get_rng_state_tracker=None, rng_tracker_name=None, init_method=None, bias=True, return_bias=False,
        params_dtype=None, parallel_mode=None, parameters_split=None, device="cuda", ub_name=None, name=None,
    ):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=params_dtype))
        self.bias = torch.nn.Parameter(torch.zeros(out_features, device=device, dtype=params_dtype)) if bias else None
        torch.nn.init.normal_(self.weight, std=0.023)

    def forward(self, inp, is_first_microbatch=None):
        return torch.nn.functional.linear(inp, self.weight, self.bias)


class _Norm(torch.nn.Module):
    def __init__(
        self, normalized_shape=None, eps=1e-5, sequence_parallel=None, params_dtype=None, zero_centered_gamma=False,
        hidden_size=None, *, device="cuda", dtype=None, **kwargs,
    ):
        super().__init__()
        if kwargs:
            raise TypeError(f"unexpected {', '.join(kwargs)}")
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(normalized_shape, device=device, dtype=dtype))


class LayerNorm(_Norm):
    def __init__(
        self, normalized_shape=None, eps=1e-5, sequence_parallel=None, params_dtype=None, zero_centered_gamma=False,
        hidden_size=None, **kwargs,
    ):
        super().__init__(
            normalized_shape, eps, sequence_parallel, params_dtype, zero_centered_gamma, hidden_size, **kwargs
        )
        self.bias = torch.nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(_Norm):
    def __init__(
        self, normalized_shape=None, eps=1e-5, sequence_parallel=None, params_dtype=None, zero_centered_gamma=False,
        hidden_size=None, **kwargs,
    ):
        super().__init__(
            normalized_shape, eps, sequence_parallel, params_dtype, zero_centered_gamma, hidden_size, **kwargs
        )

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
"""
"""Transformer Engine as far as the slots see it: constructors as in version 2, which make weights on a GPU unless told
otherwise, and the mathematics of torch."""


def write_transformer_engine(folder: Path) -> None:
    """Write the stand-in for Transformer Engine 2.9 into a folder of libraries."""
    package = folder / "transformer_engine" / "pytorch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(TRANSFORMER_ENGINE)
    metadata = folder / "transformer_engine-2.9.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: transformer-engine\nVersion: 2.9.0\n")


def write_old_liger(folder: Path) -> None:
    """Write a Liger that has the modules which the adapters import from, and nothing in them."""
    for part in ("", "ops", "transformers"):
        (folder / "liger_kernel" / part).mkdir(exist_ok=True)
        (folder / "liger_kernel" / part / "__init__.py").touch()
    for module in ("ops/geglu", "ops/swiglu", "transformers/layer_norm"):
        (folder / "liger_kernel" / f"{module}.py").touch()


@contextmanager
def importable(folder: Path, *libraries: str) -> Iterator[None]:
    """Let what lies in a folder be imported, and forget these libraries and their adapter afterwards."""

    def concerned() -> list[str]:
        return [name for name in sys.modules if name == ADAPTER or name.partition(".")[0] in libraries]

    before = {name: sys.modules.pop(name) for name in concerned()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in concerned():
            del sys.modules[name]
        sys.modules.update(before)
