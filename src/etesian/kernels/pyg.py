"""Graph attention by the softmax and scatter of torch_geometric; the edge projection is materialised."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax

from etesian.graph.edges import Edges


class PygGraphAttention(nn.Module):
    """Graph attention with torch_geometric's segment operations.

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
        edge_MHC = nn.functional.linear(edge_attr, edge_weight, edge_bias).view(-1, self.num_heads, self.head_channels)
        key_MHC = key.index_select(0, edges.src) + edge_MHC
        score_MH = (query.index_select(0, edges.dst) * key_MHC).sum(-1) / self.head_channels**0.5
        if edges.num_edges:
            score_MH = softmax(score_MH, edges.dst, num_nodes=edges.num_dst)
        message_MHC = (value.index_select(0, edges.src) + edge_MHC) * score_MH[..., None]
        out = scatter(message_MHC, edges.dst, dim=0, dim_size=edges.num_dst, reduce="sum")  # [N_dst, H, C]
        return out.to(query.dtype)
