"""Small products of nodes with the edge weight."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_rows, load_weight, multiply, place_of, store_rows


@triton.jit
def project_kernel(
    x, weight,
    projected,
    num_nodes, blocks, stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    CHANNEL_BLOCK: tl.constexpr, FEATURE_BLOCK: tl.constexpr, NODES: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute x W of each head, [N, H, D with zeros behind]. Programs: nodes, `NODES` at a time, times heads."""
    block, head = place_of(tl.program_id(0), blocks, HEADS, True)
    node = block * NODES + tl.arange(0, NODES)
    node = tl.where(node < num_nodes, node, -1)
    channel, feature = tl.arange(0, CHANNEL_BLOCK), tl.arange(0, FEATURE_BLOCK)
    w = load_weight(weight, head, channel, feature, CHANNELS, FEATURE_BLOCK)
    product = multiply(load_rows(x, node, stride, head, channel, CHANNELS), tl.trans(w), WIDE, PRECISION)
    store_rows(projected, product, node, head, feature, HEADS, FEATURE_BLOCK)
