"""Several linear layers of one input: each by itself, or all in one matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def project(x: Tensor, layers: Sequence[Any], *, fused: bool) -> tuple[Tensor, ...]:
    """Return what each of the layers makes of x.

    Parameters
    ----------
    x : Tensor, shape (N, in)
        Their input.
    layers : sequence of nn.Module
        Linear layers with a bias each, or none with one. If `fused`, of the family ``linear``: see
        :data:`etesian.kernels.families.LINEAR`.
    fused : bool
        Compute all of them in one product with their weights side by side. The layers are not called then; their
        weights are read.

    Returns
    -------
    tuple of Tensor, each of shape (N, out)
        If `fused`, views of one tensor (N, sum of out): the rows of each lie apart in memory.
    """
    if not fused:
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])  # [sum of out, in]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    joint: Tensor = nn.functional.linear(x, weight, bias)  # [N, sum of out]
    return joint.split([len(layer.weight) for layer in layers], dim=-1)
