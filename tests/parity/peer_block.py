"""A block computes what the blocks of anemoi-models 0.19 compute, given their weights: outputs and gradients.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

import pytest
import torch
from anemoi.models.distributed import shapes as peer_shapes
from anemoi.models.layers import block as peer
from anemoi.models.layers import utils as peer_utils
from small_model import make_graph, make_settings
from torch import Tensor, nn

from etesian.checkpoint.peer.names import BLOCK_NAMES as NAMES
from etesian.checkpoint.peer.names import TRANSFORMER_NAMES
from etesian.graph.edges import Edges
from etesian.kernels.resolve import resolve_kernels
from etesian.model.block import GraphTransformerBlock
from etesian.model.processor import GraphTransformerProcessorSettings
from etesian.model.self_attention import TransformerBlock, TransformerProcessorSettings

CHANNELS, HEADS, EDGE_DIM = 12, 3, 5


def make_pair(kind: type, *, bipartite: bool, qk_norm: bool) -> tuple[GraphTransformerBlock, nn.Module]:
    kernels = resolve_kernels(make_settings(), preset=None, overrides=[]).model
    settings = GraphTransformerProcessorSettings(num_heads=HEADS, mlp_hidden_ratio=2.0, qk_norm=qk_norm)
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
    return with_the_weights_of(theirs, mine, NAMES)


def with_the_weights_of(theirs: nn.Module, mine: nn.Module, names: dict[str, str]) -> tuple[nn.Module, nn.Module]:
    """Give both the same random weights, in float64."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    state = dict(theirs.named_parameters())  # each once: a norm of theirs has two names
    renamed = {name: state.pop(their_name(name, names)) for name in mine.state_dict()}
    assert not state  # every weight of theirs has its place
    mine.load_state_dict(renamed)
    return mine.double(), theirs.double()


def their_name(name: str, names: dict[str, str]) -> str:
    module, parameter = name.rsplit(".", maxsplit=1)
    return f"{names[module]}.{parameter}"


def assert_same(
    mine: nn.Module, got: Tensor, theirs: nn.Module, expected: Tensor, leaves: list[Tensor], names: dict[str, str]
) -> None:
    """Compare the results, and the gradients of inputs and weights."""
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    cotangent, weights = torch.randn_like(expected), dict(theirs.named_parameters())
    own = dict(mine.named_parameters())
    wanted = torch.autograd.grad(expected, [*leaves, *(weights[their_name(name, names)] for name in own)], cotangent)
    found = torch.autograd.grad(got, [*leaves, *own.values()], cotangent)
    for name, one, other in zip([*map(str, range(len(leaves))), *own], found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def random_leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_processor_block(qk_norm: bool) -> None:
    mine, theirs = make_pair(peer.GraphTransformerProcessorBlock, bipartite=False, qk_norm=qk_norm)
    edge_index = make_graph()[("hidden", "to", "hidden")].edge_index
    x, edge_attr = random_leaf(5, CHANNELS), random_leaf(edge_index.shape[1], EDGE_DIM)
    shards = peer_shapes.GraphShardInfo(nodes=None, edges=None)
    expected, _ = theirs(x, edge_attr, edge_index, shards, 1, 5)
    got = mine(None, x, edge_attr, Edges.from_sorted(edge_index, 5, 5))
    assert_same(mine, got, theirs, expected, [x, edge_attr], NAMES)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize(("src", "dst"), [("data", "hidden"), ("hidden", "data")])
def test_mapper_block(src: str, dst: str, qk_norm: bool) -> None:
    mine, theirs = make_pair(peer.GraphTransformerMapperBlock, bipartite=True, qk_norm=qk_norm)
    graph = make_graph()
    edge_index, sizes = graph[(src, "to", dst)].edge_index, {"data": 14, "hidden": 5}
    x_src, x_dst = (random_leaf(sizes[name], CHANNELS) for name in (src, dst))
    edge_attr = random_leaf(edge_index.shape[1], EDGE_DIM)
    shards = peer_shapes.BipartiteGraphShardInfo(src_nodes=None, dst_nodes=None, edges=None)
    (_, expected), _ = theirs((x_src, x_dst), edge_attr, edge_index, shards, 1, (sizes[src], sizes[dst]))
    got = mine(x_src, x_dst, edge_attr, Edges.from_sorted(edge_index, sizes[src], sizes[dst]))
    assert_same(mine, got, theirs, expected, [x_src, x_dst, edge_attr], NAMES)


@pytest.mark.parametrize("window", [None, 0, 4, 100])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_transformer_block(qk_norm: bool, window: int | None) -> None:
    kernels = resolve_kernels(make_settings("transformer"), preset=None, overrides=[]).processor
    settings = TransformerProcessorSettings(num_heads=HEADS, mlp_hidden_ratio=2.0, qk_norm=qk_norm)
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
    mine, theirs = with_the_weights_of(theirs, mine, TRANSFORMER_NAMES)
    batch, nodes = 2, 150  # more than two blocks of the windowed attention
    x = random_leaf(batch * nodes, CHANNELS)
    shards = peer_shapes.GraphShardInfo(nodes=None, edges=None)
    (expected,) = theirs(x, shards, batch)
    assert_same(mine, mine(x, batch), theirs, expected, [x], TRANSFORMER_NAMES)
