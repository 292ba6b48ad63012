"""Backward over sources: the gradients of keys and values, a plain gather by the view that is sorted by source."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_id, load_rows, nodes_of, place_of, rows_of, store_rows, sum_lanes


@triton.jit
def source_gradients_kernel(
    query, grad, pairs, means,
    dst, permutation, pointers,
    key_grad, value_grad,
    num_src, num_dst, num_edges, blocks, query_stride, grad_stride,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHANNEL_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, HEADS_FIRST: tl.constexpr,
    SCALE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute ``sum dS q`` and ``sum alpha g`` over the edges that leave each source, [N_src, H, C] each.

    Programs: blocks of source nodes times heads, and blocks of channels on the second axis. An edge's number is read
    two steps before its rows, and the node it leads to one step before, so that none waits for the other.
    """
    block, head = place_of(tl.program_id(0), blocks, HEADS, HEADS_FIRST)
    node, place, stop, base, steps = rows_of(block, pointers, num_src, ROWS, LANES)
    channel = tl.program_id(1) * CHANNEL_BLOCK + tl.arange(0, CHANNEL_BLOCK)
    permutation += base
    pairs += head * num_edges * 2
    means += head * num_dst

    by_ds = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    by_alpha = tl.zeros([ROWS, CHANNEL_BLOCK], dtype=WIDE)
    edge = load_id(permutation, place, stop)
    next_edge = load_id(permutation, place + LANES, stop)
    target = load_id(dst, edge, num_edges)
    for _ in range(steps):
        valid = place < stop
        edge_after = load_id(permutation, place + 2 * LANES, stop)
        next_target = load_id(dst, next_edge, num_edges)
        pair = pairs + edge.to(tl.int64) * 2
        alpha = tl.load(pair, mask=valid, other=0.0)
        grad_alpha = tl.load(pair + 1, mask=valid, other=0.0)
        mean = tl.load(means + target, mask=valid, other=0.0)
        q = load_rows(query, target, valid, query_stride, head, channel, CHANNELS)
        g = load_rows(grad, target, valid, grad_stride, head, channel, CHANNELS)
        by_ds += (alpha * (grad_alpha - mean) * SCALE)[:, None] * q.to(WIDE)
        by_alpha += alpha[:, None] * g.to(WIDE)
        place, edge, next_edge, target = place + LANES, next_edge, edge_after, next_target

    node, there = nodes_of(block, num_src, ROWS, LANES)
    of_key = sum_lanes(by_ds, ROWS, LANES, CHANNEL_BLOCK)
    store_rows(key_grad, of_key, node, there, head, channel, HEADS, CHANNELS)
    of_value = sum_lanes(by_alpha, ROWS, LANES, CHANNEL_BLOCK)
    store_rows(value_grad, of_value, node, there, head, channel, HEADS, CHANNELS)
