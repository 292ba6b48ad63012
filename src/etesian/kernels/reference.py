"""Graph attention as its formula reads: the edge projection is materialised. The oracle of the other backends.

Shapes: N nodes, M edges, H heads, C channels a head, D edge features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.graph.edges import Edges


class ReferenceGraphAttention(nn.Module):
    """Graph attention in plain PyTorch, any device and dtype.

    Parameters
    ----------
    num_heads, head_channels : int
        H and C.
    """

    def __init__(self, num_heads: int, head_channels: int) -> None:
        super().__init__()
        self.num_heads, self.head_channels = num_heads, head_channels

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
        """Attend over the edges; see :data:`etesian.kernels.slots.GRAPH_ATTENTION_CALL`."""
        projected = nn.functional.linear(edge_attr, edge_weight, edge_bias)  # [M, H*C]
        edge_MHC = projected.view(-1, self.num_heads, self.head_channels)
        key_MHC = key[edges.src] + edge_MHC
        value_MHC = value[edges.src] + edge_MHC
        score_MH = (query[edges.dst] * key_MHC).sum(-1).to(_wide(query.dtype)) / self.head_channels**0.5

        index = edges.dst[:, None].expand_as(score_MH)
        bounds = score_MH.new_full((edges.num_dst, self.num_heads), -torch.inf)
        highest = bounds.scatter_reduce(0, index, score_MH.detach(), "amax")  # [N_dst, H]
        power_MH = (score_MH - highest[edges.dst]).exp()
        total = torch.zeros_like(highest).index_add(0, edges.dst, power_MH)  # [N_dst, H]
        alpha_MH = power_MH / total[edges.dst]

        message_MHC = alpha_MH[..., None] * value_MHC
        out = message_MHC.new_zeros(edges.num_dst, self.num_heads, self.head_channels)
        return out.index_add(0, edges.dst, message_MHC).to(query.dtype)  # [N_dst, H, C]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a softmax over numbers of this dtype is taken."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
