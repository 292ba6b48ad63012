"""Liger's kernels under Triton's interpreter, against float64; run by ``test_liger_adapter.py``."""

from __future__ import annotations

import torch
from torch import nn

from etesian.kernels.liger import LigerLayerNorm


def test_the_layer_norm_begins_as_torch_does() -> None:
    mine, theirs = LigerLayerNorm(8), nn.LayerNorm(8)
    assert mine.variance_epsilon == theirs.eps
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in mine.state_dict().items())
