"""Attention among the hidden nodes without edges: the block, the processor, and the order of the nodes.

Shapes: N hidden nodes, `copies` of them folded in (batch and ensemble), H heads, C channels a head.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.kernels.resolve import LayerKernels
from etesian.model.block import Block
from etesian.model.exchange import Heads
from etesian.model.projections import project
from etesian.schema.model import BlockSettings, EdgeTrainableParameters, ProcessorSettings
from etesian.schema.registry import register


@register("processor", "transformer")
class TransformerProcessorSettings(BlockSettings, ProcessorSettings):
    """Section ``model.processor`` of kind ``transformer``: hidden nodes attend to all, or to those near in an order."""

    can_be_shared: ClassVar[bool] = True
    kind: Literal["transformer"] = "transformer"
    window_size: int | None = Field(default=512, ge=0)
    """How many places of the order a node sees to either side; null: all nodes see all."""
    node_order: Literal["latitude", "graph"] = "latitude"
    """The order that the window is over: ``latitude`` goes around the globe in rows from north to south, ``graph`` is
    that of the graph file. Without a window it does not matter."""

    def uses(self, slot: str) -> bool:
        """Tell whether the component has layers that a slot of ``layer_kernels`` makes."""
        return slot == "Attention" or (slot != "GraphAttention" and super().uses(slot))

    def attention_window(self) -> int | None:
        """Return what the slot ``Attention`` is built with as ``window_size``."""
        return self.window_size

    def build(
        self, num_channels: int, graph: HeteroData, learnt: EdgeTrainableParameters, kernels: LayerKernels
    ) -> nn.Module:
        """Return the processor; edges hidden to hidden are not needed, and not looked at."""
        latlons = graph["hidden"].x
        windowed = self.window_size is not None and self.window_size < latlons.shape[0] - 1
        order = latitude_order(latlons) if windowed and self.node_order == "latitude" else None
        return TransformerProcessor(num_channels, order, self, kernels)


def latitude_order(latlons: Tensor) -> Tensor:
    """Return the numbers of the nodes in rows from north to south, each row from west to east.

    A window over the places of an order is a neighbourhood on the sphere only if what is near in the order is near
    there. The nodes of an icosahedral mesh are numbered level by level, so neighbours of a fine level stand anywhere
    beside each other. Here the sphere is cut into rows of equal height, as high as N evenly spread nodes are apart,
    ``sqrt(4 pi / N)``. A row ends where it began, at longitude 0, and the next begins there: the order goes around the
    globe as a thread on a reel. A window of w sees about ``w / sqrt(pi N)`` rows to the north and as many to the south
    at the equator, and more rows towards the poles.

    Parameters
    ----------
    latlons : Tensor, shape (N, 2)
        Latitude and longitude, radians.

    Returns
    -------
    Tensor, shape (N,)
        Numbers of the nodes; those of equal place keep the order of their numbers.
    """
    latitude, longitude = latlons.double().unbind(-1)
    rows = max(1, round(math.sqrt(math.pi * latlons.shape[0]) / 2))
    row = ((math.pi / 2 - latitude) / math.pi * rows).floor().clamp(0, rows - 1)
    order = torch.argsort(longitude.remainder(2 * math.pi), stable=True)
    return order[torch.argsort(row[order], stable=True)]


class TransformerBlock(Block):
    """Attention among the nodes of each copy, then an MLP, each after a norm and with a residual.

    ``x' = x + projection(attention(q, k, v))``, ``x'' = x' + mlp(norm(x'))``, where q, k and v come from norm(x) [1]_.
    There is no encoding of positions: where a node is, its features tell.

    Parameters
    ----------
    num_channels : int
        Width of the nodes, H C.
    settings : BlockSettings
        Heads, width of the MLP, norms of queries and keys, and whether queries, keys and values are one product.
    window_size : int or None
        How many places a node sees to either side; None: all nodes.
    kernels : LayerKernels
        Where every layer comes from.

    Notes
    -----
    Queries, keys and values have no bias, whatever the slot ``Linear`` does elsewhere.

    References
    ----------
    .. [1] Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, https://arxiv.org/abs/2002.04745
    """

    def __init__(
        self, num_channels: int, settings: BlockSettings, window_size: int | None, kernels: LayerKernels
    ) -> None:
        super().__init__()
        self.num_heads, self.fuse_projections = settings.num_heads, settings.fuse_projections
        head_channels = num_channels // settings.num_heads
        self.norm_attention = kernels.LayerNorm(num_channels)
        self.query = kernels.Linear(num_channels, num_channels, bias=False)
        self.key = kernels.Linear(num_channels, num_channels, bias=False)
        self.value = kernels.Linear(num_channels, num_channels, bias=False)
        self.query_norm = kernels.QueryNorm(head_channels) if settings.qk_norm else None
        self.key_norm = kernels.KeyNorm(head_channels) if settings.qk_norm else None
        self.attention = kernels.Attention(settings.num_heads, head_channels, window_size=window_size)
        self.projection = kernels.Linear(num_channels, num_channels)
        self.norm_mlp = kernels.LayerNorm(num_channels)
        hidden_channels = int(num_channels * settings.mlp_hidden_ratio)
        self.mlp = kernels.MLP(num_channels, hidden_channels, num_channels, layer_kernels=kernels)
        self.heads: Heads | None = None  # where processes share the model

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Update the nodes, [(copies N), H C], in the order that the window is over."""
        normed = self.norm_attention(x)
        projected = project(normed, (self.query, self.key, self.value), fused=self.fuse_projections)
        query, key, value = map(self._heads, projected)  # [(copies N), H, C] each
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)

        x = x + self.projection(self._attend(query, key, value, copies))
        return x + self.mlp(self.norm_mlp(x))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, copies: int) -> Tensor:
        """From [(copies N), H, C] each to [(copies N), H C]; where processes share the model, N is of this one."""
        if self.heads is not None:
            parts = self.heads.split(torch.stack([query, key, value], dim=1), copies)  # [3, copies, h, N of all, C]
            return self.heads.join(self.attention(*parts))
        # Views: in memory the heads stay behind the nodes, as the linear layers wrote them and read them.
        query, key, value = (rearrange(t, "(b n) h c -> b h n c", b=copies) for t in (query, key, value))
        return rearrange(self.attention(query, key, value), "b h n c -> (b n) (h c)")

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "n (h c) -> n h c", h=self.num_heads)


class TransformerProcessor(nn.Module):
    """Blocks of attention among the hidden nodes; the nodes are put in order before and put back after all of them.

    Parameters
    ----------
    num_channels : int
        Width of the hidden nodes.
    order : Tensor, shape (N,), or None
        Numbers of the nodes in the order that the window is over; None: as the graph has them.
    settings : TransformerProcessorSettings
        Section ``model.processor``.
    kernels : LayerKernels
        Kernels of the processor.
    """

    order: Tensor | None
    back: Tensor | None

    def __init__(
        self,
        num_channels: int,
        order: Tensor | None,
        settings: TransformerProcessorSettings,
        kernels: LayerKernels,
    ) -> None:
        super().__init__()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("back", None if order is None else order.argsort(), persistent=False)
        self.blocks = nn.ModuleList(
            TransformerBlock(num_channels, settings, settings.window_size, kernels) for _ in range(settings.num_layers)
        )

    def share(self, heads: Heads) -> None:
        """Let the blocks share their heads with other processes; `heads` puts the nodes in order then."""
        self.order = self.back = None
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            block.heads = heads

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N), C] to the same shape; copies don't see each other."""
        x = _reorder(x, self.order, copies)
        for block in self.blocks:
            x = block(x, copies)  # [(copies N), C]
        return _reorder(x, self.back, copies)


def _reorder(x: Tensor, order: Tensor | None, copies: int) -> Tensor:
    """Put the nodes of each copy in [(copies N), C] in another order."""
    if order is None:
        return x
    return x.unflatten(0, (copies, -1)).index_select(1, order).flatten(0, 1)
