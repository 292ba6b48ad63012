"""Encoder and decoder on a part of the nodes at a time: the same numbers, in less memory."""

from __future__ import annotations

import pytest
import torch
from kept_bytes import highest_bytes
from small_model import make_fields, make_graph, make_model, make_settings
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.graph.edges import Edges
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.model.chunks import Chunk, cut
from etesian.model.miniature import build_miniature, miniature_settings
from etesian.runtime import offload
from etesian.runtime.checkpointing import checkpointing_of
from etesian.runtime.prepare import prepare_model


def settings(chunks: int, kind: str = "graphtransformer", **block: object):
    shared = {"num_heads": 2, "mlp_hidden_ratio": 2.0, "gradient_checkpointing": "full"} | block
    mapper = shared | {"num_chunks": chunks}
    return make_settings(kind, encoder=mapper, decoder=mapper)


def prepared(chunks: int, graph=None, **changes: object) -> nn.Module:
    """Build a model in float64 with the same weights each time."""
    chosen = settings(chunks, **changes)
    kernels = resolve_kernels(chosen, preset=None, overrides=[])
    model = build_model(chosen, graph or make_graph(), make_fields(), kernels).double()
    prepare_model(model, chosen, kernels)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def run(model: nn.Module, nodes: int = 14) -> dict[str, Tensor]:
    """Return the output and every gradient, of two samples and two members."""
    x = torch.randn(2, 2, 2, nodes, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(x)
    y.square().mean().backward()
    return {"output": y.detach()} | {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("block", [{}, {"qk_norm": True, "fuse_projections": True}], ids=["plain", "fused"])
@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_output_and_gradients_are_those_without_chunks(kind: str, chunks: int, block: dict[str, object]) -> None:
    whole, parted = prepared(1, kind=kind, **block), prepared(chunks, kind=kind, **block)
    assert list(parted.state_dict()) == list(whole.state_dict())
    expected, found = run(whole), run(parted)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


def some_edges() -> Edges:
    """10 nodes: the first has 20 edges, the last three have none, the others one each."""
    dst = torch.tensor([0] * 20 + list(range(1, 7)))
    src = torch.arange(26) % 9
    return Edges.from_sorted(torch.stack([src, dst]), 9, 10)


@pytest.mark.parametrize("count", range(2, 11))
def test_chunks_hold_every_node_and_edge_once_and_their_own_sources(count: int) -> None:
    edges = some_edges()
    chunks = list(cut(edges, count, "key"))
    assert len(chunks) == count
    assert [i for chunk in chunks for i in range(10)[chunk.nodes]] == list(range(10))
    assert [i for chunk in chunks for i in range(26)[chunk.part]] == list(range(26))
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        assert chunk.nodes.start < chunk.nodes.stop
        own = chunk.static.edges(1)
        assert torch.equal(chunk.source[own.src], edges.src[chunk.part])
        assert torch.equal(own.dst + chunk.nodes.start, edges.dst[chunk.part])
        assert own.num_src == len(set(edges.src[chunk.part].tolist()))


def test_one_chunk_is_no_chunk() -> None:
    assert len(cut(some_edges(), 1, "key")) == 0


@pytest.mark.parametrize("policy", ["selective", "offload"])
@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_other_policies_give_the_same_numbers(kind: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 0)
    whole = prepared(1, kind=kind, gradient_checkpointing="none")
    parted = prepared(3, kind=kind, gradient_checkpointing=policy, fuse_projections=True)
    assert checkpointing_of(parted.decoder.block) == policy
    expected, found = run(whole), run(parted)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize(("policy", "share"), [("full", 0.5), ("selective", 0.8)])
def test_the_highest_memory_of_a_step_is_lower(policy: str, share: float) -> None:
    graph = make_graph(num_data=200, num_hidden=20)
    peaks = []
    for chunks in (1, 4):
        model = prepared(chunks, graph, mlp_hidden_ratio=8.0, gradient_checkpointing=policy)
        peaks.append(highest_bytes(lambda model=model: run(model, 200)))
    assert peaks[1] < share * peaks[0]


def test_a_chunk_is_offloaded_when_the_next_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "SMALLEST", 0)
    kept = []
    for chunks in (1, 8):
        model = prepared(chunks, make_graph(num_data=200, num_hidden=20), gradient_checkpointing="offload")
        y = model(torch.randn(1, 2, 1, 200, 3, dtype=torch.float64))
        last = model.decoder.block.forward.args[0].latest
        kept.append(sum(held.device.nbytes for held in last.alive() if held.device is not None))
        del y
    assert kept[1] < kept[0] / 4


class Largest(TorchDispatchMode):
    """Notes the most numbers that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_the_largest_tensor_is_smaller() -> None:
    graph, largest = make_graph(num_data=800, num_hidden=40), {}
    for chunks in (1, 8):
        model = prepared(chunks, graph, mlp_hidden_ratio=8.0)
        with Largest() as noted:
            run(model, 800)
        largest[chunks] = noted.numbers
    assert largest[1] >= 4 * 800 * 16 * 8  # the hidden channels of the decoder's MLP
    assert largest[8] < largest[1] / 6


def test_more_chunks_than_nodes_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        make_model(settings(6))
    (found,) = caught.value.problems
    assert found.where == "model.encoder.num_chunks"
    assert found.allowed == "a whole number from 1 to 5"


def test_the_stand_in_has_chunks_too() -> None:
    chosen = settings(6)
    assert miniature_settings(chosen).decoder.num_chunks == 2
    model = build_miniature(chosen, resolve_kernels(chosen, preset=None, overrides=[]))
    assert (len(model.encoder.chunks), len(model.decoder.chunks)) == (2, 2)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.decoder.num_chunks=4", "num_chunks=4 saves nothing with gradient_checkpointing=none"),
        ("model.decoder.num_chunks=0", "num_chunks"),
        ("model.processor.num_chunks=2", "num_chunks"),
    ],
)
def test_what_a_config_may_get_wrong(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_tree(compose("train", None, [f"+{override}" if "processor" in override else override]))
