"""Compiled forms of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

OPTIONS: Mapping[str, Any] = {"fullgraph": True, "dynamic": False}
"""What a kernel is compiled with: in one graph, for the shapes it is called with."""


def compile_in_place(layer: nn.Module, options: Mapping[str, Any] | None = None, *, backend: str | None = None) -> None:
    """Compile the forward of a layer; names in its state dict do not change.

    The compiler keeps what it made by code object, and looks through all that it has of one at each call. Each layer
    gets a code object of its own here, so that kernels that inherit their forward don't wait for each other.

    Parameters
    ----------
    layer : nn.Module
        Changed in place.
    options : mapping, optional
        Of ``torch.compile``; `OPTIONS` when left out.
    backend : str, optional
        Of ``torch.compile``, instead of that of the options.
    """
    chosen: dict[str, Any] = dict(OPTIONS if options is None else options)
    chosen |= {"backend": backend} if backend is not None else {}
    forward = layer.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"compiled_{type(layer).__name__}")
    layer.forward = torch.compile(call, **chosen)


def graphs_so_far() -> int:
    """Return how many graphs have been compiled in this process since the last reset."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def forget_compiled() -> None:
    """Drop what was compiled, so that kernels of one class on many shapes do not reach torch's limit of forms."""
    torch.compiler.reset()
