"""A block computes what the blocks of anemoi-models 0.19 compute, given their weights."""

from __future__ import annotations

import pytest
import torch
from small_model import make_graph, make_settings
from torch import nn

from etesian.graph.edges import Edges
from etesian.kernels.resolve import resolve_kernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.self_attention import TransformerBlock
from etesian.schema.model import BlockSettings

peer = pytest.importorskip("anemoi.models.layers.block", exc_type=ImportError)
peer_shapes = pytest.importorskip("anemoi.models.distributed.shapes", exc_type=ImportError)
peer_utils = pytest.importorskip("anemoi.models.layers.utils", exc_type=ImportError)

CHANNELS, HEADS, EDGE_DIM = 12, 3, 5

NAMES = {
    "norm_attention": "layer_norm_attention",
    "norm_source": "layer_norm_attention_src",
    "query": "lin_query",
    "key": "lin_key",
    "value": "lin_value",
    "own": "lin_self",
    "edge": "lin_edge",
    "projection": "projection",
    "query_norm": "q_norm",
    "key_norm": "k_norm",
    "norm_mlp": "layer_norm_mlp_dst",
    "mlp.linear_in": "node_dst_mlp.mlp.0",
    "mlp.linear_out": "node_dst_mlp.mlp.2",
}


def make_pair(kind: type, *, bipartite: bool, qk_norm: bool) -> tuple[GraphTransformerBlock, nn.Module]:
    kernels = resolve_kernels(make_settings(), preset=None, overrides=[]).model
    settings = BlockSettings(num_heads=HEADS, mlp_hidden_ratio=2.0, qk_norm=qk_norm)
    mine = GraphTransformerBlock(CHANNELS, EDGE_DIM, settings, kernels, bipartite=bipartite)
    theirs = kind(
        in_channels=CHANNELS,
        hidden_dim=2 * CHANNELS,
        out_channels=CHANNELS,
        num_heads=HEADS,
        edge_dim=EDGE_DIM,
        qk_norm=qk_norm,
        layer_kernels=peer_utils.load_layer_kernels(),
        graph_attention_backend="pyg",
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    state = theirs.state_dict()
    renamed = {}
    for name in mine.state_dict():
        module, parameter = name.rsplit(".", maxsplit=1)
        renamed[name] = state[f"{NAMES[module]}.{parameter}"]
    mine.load_state_dict(renamed)
    return mine.double(), theirs.double()


@pytest.mark.parametrize("qk_norm", [False, True])
def test_processor_block(qk_norm: bool) -> None:
    mine, theirs = make_pair(peer.GraphTransformerProcessorBlock, bipartite=False, qk_norm=qk_norm)
    edge_index = make_graph()[("hidden", "to", "hidden")].edge_index
    x = torch.randn(5, CHANNELS, dtype=torch.float64)
    edge_attr = torch.randn(edge_index.shape[1], EDGE_DIM, dtype=torch.float64)
    shards = peer_shapes.GraphShardInfo(nodes=None, edges=None)
    expected, _ = theirs(x, edge_attr, edge_index, shards, 1, 5)
    got = mine(None, x, edge_attr, Edges.from_sorted(edge_index, 5, 5))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize(("src", "dst"), [("data", "hidden"), ("hidden", "data")])
def test_mapper_block(src: str, dst: str, qk_norm: bool) -> None:
    mine, theirs = make_pair(peer.GraphTransformerMapperBlock, bipartite=True, qk_norm=qk_norm)
    graph = make_graph()
    edge_index, sizes = graph[(src, "to", dst)].edge_index, {"data": 14, "hidden": 5}
    x_src, x_dst = (torch.randn(sizes[name], CHANNELS, dtype=torch.float64) for name in (src, dst))
    edge_attr = torch.randn(edge_index.shape[1], EDGE_DIM, dtype=torch.float64)
    shards = peer_shapes.BipartiteGraphShardInfo(src_nodes=None, dst_nodes=None, edges=None)
    (_, expected), _ = theirs((x_src, x_dst), edge_attr, edge_index, shards, 1, (sizes[src], sizes[dst]))
    got = mine(x_src, x_dst, edge_attr, Edges.from_sorted(edge_index, sizes[src], sizes[dst]))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


TRANSFORMER_NAMES = {
    "norm_attention": "layer_norm_attention",
    "query": "attention.lin_q",
    "key": "attention.lin_k",
    "value": "attention.lin_v",
    "query_norm": "attention.q_norm",
    "key_norm": "attention.k_norm",
    "projection": "attention.projection",
    "norm_mlp": "layer_norm_mlp",
    "mlp.linear_in": "mlp.mlp.0",
    "mlp.linear_out": "mlp.mlp.2",
}


@pytest.mark.parametrize("window", [None, 0, 4, 100])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_transformer_block(qk_norm: bool, window: int | None) -> None:
    kernels = resolve_kernels(make_settings("transformer"), preset=None, overrides=[]).processor
    settings = BlockSettings(num_heads=HEADS, mlp_hidden_ratio=2.0, qk_norm=qk_norm)
    mine = TransformerBlock(CHANNELS, settings, window, kernels)
    theirs = peer.TransformerProcessorBlock(
        num_channels=CHANNELS,
        hidden_dim=2 * CHANNELS,
        num_heads=HEADS,
        window_size=window,
        qk_norm=qk_norm,
        layer_kernels=peer_utils.load_layer_kernels(),
        attention_implementation="scaled_dot_product_attention",
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    state, renamed = theirs.state_dict(), {}
    for name in mine.state_dict():
        module, parameter = name.rsplit(".", maxsplit=1)
        renamed[name] = state.pop(f"{TRANSFORMER_NAMES[module]}.{parameter}")
    assert not state  # every weight of theirs has its place
    mine.load_state_dict(renamed)
    batch, nodes = 2, 150  # more than two blocks of the windowed attention
    x = torch.randn(batch * nodes, CHANNELS, dtype=torch.float64)
    shards = peer_shapes.GraphShardInfo(nodes=None, edges=None)
    (expected,) = theirs.double()(x, shards, batch)
    torch.testing.assert_close(mine.double()(x, batch), expected, rtol=1e-10, atol=1e-10)
