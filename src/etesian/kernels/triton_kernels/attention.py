"""Graph attention in Triton kernels that never form the edge projection; a GPU, or Triton's interpreter.

With e = W a + b for an edge with attributes a (formulas in :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`), the
kernels use what :mod:`etesian.kernels.factored` does: an edge is read as its D attributes, not as H C projected
numbers. What has C numbers a head is read by tiles of edges (:mod:`etesian.graph.tiles`): a node at the other end once
for a block of nodes, and multiplied on matrix units. What has one number an edge and head is read by node, the edges
into it and all heads at a time. The files beside this one hold a kernel each:

forward
    :mod:`~etesian.kernels.triton_kernels.project` makes q W; :mod:`~etesian.kernels.triton_kernels.pairs` q k of each
    edge; :mod:`~etesian.kernels.triton_kernels.softmax` adds (q W) a, makes alpha of it, and sum alpha a;
    :mod:`~etesian.kernels.triton_kernels.sums` the output, sum alpha v + W (sum alpha a) + b.
    Kept beside inputs and output: alpha, [H, M], and q W, [N_dst, H, D with zeros behind].
backward
    :mod:`~etesian.kernels.triton_kernels.project` makes g W of the gradient g;
    :mod:`~etesian.kernels.triton_kernels.pairs` g v of each edge; :mod:`~etesian.kernels.triton_kernels.slopes` the
    gradient of the scores. With that the others are sums: over the edges into a node for the query
    (:mod:`~etesian.kernels.triton_kernels.sums`), over those from a node for key and value
    (:mod:`~etesian.kernels.triton_kernels.sources`), over nodes for weight and bias
    (:mod:`~etesian.kernels.triton_kernels.weights`), over heads for the attributes
    (:mod:`~etesian.kernels.triton_kernels.edges`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges
from etesian.graph.tiles import EdgeTiles
from etesian.kernels.triton_kernels.backward import Inputs
from etesian.kernels.triton_kernels.ops import INTERPRETED, graph_attention

DTYPES = (torch.bfloat16, torch.float16, torch.float32, *([torch.float64] if INTERPRETED else []))
"""What the kernels compute in; Triton has no matrix products of float64 for a GPU, its interpreter has."""

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
            If the edges are not in tiles, a tensor has another shape than heads, channels and edges make it or lies on
            another device, or the graph has 2^31 nodes or edges.
        """
        inputs = query, key, value, edge_attr, edge_weight, edge_bias
        tiles = self._check(inputs, edges)
        out, _, _ = graph_attention(*inputs, edges.dst, *tiles.tensors(), edges.most, self.tune)
        return out

    def _check(self, inputs: Inputs, edges: Edges) -> EdgeTiles:
        """Return the tiles; refuse what the kernels would read past the end of. Nothing waits for the device."""
        query, key, value, edge_attr, edge_weight, edge_bias = inputs
        if edges.tiles is None:
            raise ValueError(
                "the edges are not in tiles: edges.with_tiles() makes them; a model does for kernels whose class has "
                "reads_tiles = True"
            )
        if max(edges.num_dst, edges.num_src, edges.num_edges) > MOST:
            raise ValueError(f"the graph has more than {MOST} nodes or edges")
        if edges.dst.device != query.device:
            raise ValueError(f"the edges are on {edges.dst.device}, the query on {query.device}")
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
        return edges.tiles
