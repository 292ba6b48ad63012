"""The adapter of the peer's Triton kernel: the peer's own kernel, computed on a CPU by Triton's interpreter.

Run by ``test_peers.py``, in a process that has the peer and Triton. The peer registers its kernels for GPUs alone and
takes them only where it sees one; both is changed here, before its blocks are imported.
"""

from __future__ import annotations

import anemoi.models.triton.utils as peer_utils
import pytest
import torch
from peer_graph_attention import assert_like_the_reference, make_edges

from peer_attention import PeerTritonGraphAttention

peer_utils.is_triton_available = lambda: True

from anemoi.models.triton import gt  # noqa: E402

for _operator in (gt.graph_transformer_attention, gt.graph_transformer_attention_backward):
    _operator.register_kernel("cpu", _operator._init_fn)


@pytest.mark.parametrize("heads_and_channels", [(2, 4), (2, 3)])
def test_as_the_reference(heads_and_channels: tuple[int, int]) -> None:
    pairs = [(0, 0), (1, 0), (1, 2), (3, 2), (0, 2), (2, 4)]
    assert_like_the_reference(
        PeerTritonGraphAttention, make_edges(pairs, 5, 6), *heads_and_channels, torch.float32, tolerance=1e-5
    )
