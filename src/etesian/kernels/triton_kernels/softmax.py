"""Forward over the edges into each node: the softmax, and the sums of the edge attributes."""

from __future__ import annotations

import triton
import triton.language as tl

from etesian.kernels.triton_kernels.tiles import load_attributes, rows_of


@triton.jit
def softmax_kernel(
    scores, projected, attributes, pointers,
    sums,
    num_dst, num_edges,
    HEADS: tl.constexpr, FEATURE_BLOCK: tl.constexpr, ROWS: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Make alpha of scores, [H, M], in place, and ``sum alpha a``, [N_dst, H, D with zeros behind].

    ``scale (q W) . a`` is added to each score first. The softmax is taken to the base 2: `SCALE` and the scores hold
    log2(e) / sqrt(C). Programs: rows; each takes its edges one by one.
    """
    row, there, head, begin, end, steps = rows_of(pointers, num_dst, HEADS, ROWS)
    feature = tl.arange(0, FEATURE_BLOCK)
    place = row[:, None] * FEATURE_BLOCK + feature[None, :]
    q = tl.load(projected + place, mask=there[:, None], other=0.0).to(WIDE)
    scores += head * num_edges
    highest = tl.full([ROWS], -float("inf"), dtype=WIDE)
    total = tl.zeros([ROWS], dtype=WIDE)
    summed = tl.zeros([ROWS, FEATURE_BLOCK], dtype=WIDE)
    for step in range(steps):
        edge = begin + step
        a = load_attributes(attributes, edge, edge < end, feature, FEATURE_BLOCK).to(WIDE)
        score = tl.load(scores + edge, mask=edge < end, other=-float("inf")) + tl.sum(q * a, axis=1) * SCALE
        tl.store(scores + edge, score, mask=edge < end)
        before = highest
        highest = tl.maximum(before, score)
        level = tl.where(highest == -float("inf"), 0.0, highest)  # of rows without an edge
        rest, share = tl.exp2(before - level), tl.exp2(score - level)
        total = total * rest + share
        summed = summed * rest[:, None] + share[:, None] * a
    total = tl.where(total > 0, total, 1.0)
    tl.store(sums + place, (summed / total[:, None]).to(sums.dtype.element_ty), mask=there[:, None])
    normaliser = tl.where(highest == -float("inf"), 0.0, highest) + tl.log2(total)
    tl.debug_barrier()
    for step in range(steps):
        edge = begin + step
        score = tl.load(scores + edge, mask=edge < end, other=-float("inf"))
        tl.store(scores + edge, tl.exp2(score - normaliser), mask=edge < end)
