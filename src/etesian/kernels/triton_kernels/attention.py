"""Graph attention in Triton kernels that never form the edge projection; a GPU, or Triton's interpreter.

With e = W a + b for an edge with attributes a (formulas in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`), the
kernels use what :mod:`etesian.kernels.factored` does: an edge is read as its D attributes, not as H C projected
numbers. Every kernel walks over the edges of some nodes in one layout of registers; see the files beside this one:

forward
    :mod:`scores <etesian.kernels.triton_kernels.scores>` reads queries and keys,
    :mod:`outputs <etesian.kernels.triton_kernels.outputs>` values. Kept beside the inputs and the output: M H scores.
backward
    :mod:`score_gradients <etesian.kernels.triton_kernels.score_gradients>` writes alpha and the scores' gradient for
    each edge and head, from which the others are plain sums over
    destinations (:mod:`~etesian.kernels.triton_kernels.query_gradient`),
    sources (:mod:`~etesian.kernels.triton_kernels.source_gradients`),
    nodes (:mod:`~etesian.kernels.triton_kernels.weight_gradient`)
    and heads (:mod:`~etesian.kernels.triton_kernels.attribute_gradient`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.kernels.triton_kernels.ops import graph_attention

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

MOST = 2**31 - 1
"""Nodes and edges at most: the kernels count them in 32 bits. Tensors may hold more numbers than that."""


class TritonGraphAttention(nn.Module):
    """Graph attention in Triton.

    Numbers of 16 bits are multiplied as they are and added up in float32; the result has the dtype of the query.
    The same input gives the same bits.

    Parameters
    ----------
    num_heads, head_channels : int
        H and C.
    tune : bool
        Whether the kernels are measured with a few ways to cut the work into programs, once for each shape, dtype and
        card, in place of a table. The ways differ by roundings, so under
        ``torch.use_deterministic_algorithms(True)`` the table is used all the same.
    """

    reads_tiles = True
    """That the edges have to be in tiles, as :meth:`etesian.graph.edges.Edges.with_tiles` makes them."""

    def __init__(self, num_heads: int, head_channels: int, tune: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_channels, self.tune = num_heads, head_channels, tune

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        edge_weight: Tensor,
        edge_bias: Tensor | None,
        edges: Edges,
    ) -> Tensor:
        """Attend over the edges; see :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`.

        Raises
        ------
        RuntimeError
            On a CPU without Triton's interpreter.
        TypeError
            If a tensor has a dtype that the kernels don't know.
        ValueError
            If a tensor has another shape than heads, channels and edges make it, or lies on another device, or the
            graph has 2^31 nodes or edges.
        """
        self._check(query, key, value, edge_attr, edge_weight, edge_bias, edges)
        assert edges.tiles is not None
        out, _, _ = graph_attention(
            query,
            key,
            value,
            edge_attr,
            edge_weight,
            edge_bias,
            edges.dst,
            *edges.tiles.tensors(),
            edges.most,
            self.tune,
        )
        return out

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge_attr: Tensor,
        edge_weight: Tensor,
        edge_bias: Tensor | None,
        edges: Edges,
    ) -> None:
        """Refuse what the kernels would read past the end of; shapes only, nothing waits for the device."""
        if edges.tiles is None:
            raise ValueError("the edges are not in tiles: edges.with_tiles() makes them")
        if max(edges.num_dst, edges.num_src, edges.num_edges) > MOST:
            raise ValueError(f"the graph has more than {MOST} nodes or edges")
        heads, channels, features = self.num_heads, self.head_channels, edge_attr.shape[-1]
        due = {
            "query": (query, (edges.num_dst, heads, channels)),
            "key": (key, (edges.num_src, heads, channels)),
            "value": (value, (edges.num_src, heads, channels)),
            "edge_attr": (edge_attr, (edges.num_edges, features)),
            "edge_weight": (edge_weight, (heads * channels, features)),
        }
        if edge_bias is not None:
            due["edge_bias"] = (edge_bias, (heads * channels,))
        for name, (tensor, shape) in due.items():
            if tensor.shape != shape:
                raise ValueError(f"{name} has the shape {list(tensor.shape)}, where {list(shape)} is due")
            if tensor.dtype not in DTYPES:
                raise TypeError(f"{name} is {tensor.dtype}; the Triton kernels know {', '.join(map(str, DTYPES))}")
            if tensor.device != query.device:
                raise ValueError(f"{name} is on {tensor.device}, the query on {query.device}")
