"""The adapter with which benchmarks measure the peer's attention computes what the slot ``GraphAttention`` asks for.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import graph_attention
from etesian.graph.edges import Edges
from etesian.kernels.reference import ReferenceGraphAttention
from peer_attention import PeerPygGraphAttention, PeerTritonGraphAttention

NAMES = ("output", "query", "key", "value", "edge_attr", "edge_weight", "edge_bias")
FEATURES = 5


def make_edges(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> Edges:
    return Edges.from_sorted(torch.tensor(pairs).T, num_src, num_dst)


def results(layer: nn.Module, edges: Edges, heads: int, channels: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(edges.num_dst, heads, channels), *2 * [(edges.num_src, heads, channels)], (edges.num_edges, FEATURES),
              (heads * channels, FEATURES), (heads * channels,)]  # fmt: skip
    leaves = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    out = layer(*leaves, edges)
    return [out, *torch.autograd.grad(out, leaves, torch.randn(out.shape, generator=generator).to(dtype))]


def assert_like_the_reference(
    kind: type[nn.Module], edges: Edges, heads: int, channels: int, dtype: torch.dtype, tolerance: float
) -> None:
    found = results(kind(heads, channels), edges, heads, channels, dtype)
    wanted = results(ReferenceGraphAttention(heads, channels), edges, heads, channels, torch.float64)
    for name, one, other in zip(NAMES, found, wanted, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    ("pairs", "num_src", "num_dst"),
    [
        pytest.param([(0, 0), (1, 0), (1, 2), (3, 2), (0, 2)], 4, 3, id="nodes without edges"),
        pytest.param([(i % 40, i // 9) for i in range(270)], 40, 31, id="many"),
    ],
)
def test_as_the_reference(pairs: list[tuple[int, int]], num_src: int, num_dst: int) -> None:
    edges = make_edges(pairs, num_src, num_dst)
    assert_like_the_reference(PeerPygGraphAttention, edges, 3, 4, torch.float64, tolerance=1e-10)


def test_one_layer_serves_several_graphs() -> None:
    layer = PeerPygGraphAttention(2, 3)
    for pairs in ([(0, 0), (1, 0)], [(1, 0), (0, 1)]):
        edges = make_edges(pairs, 2, 2)
        found = results(layer, edges, 2, 3, torch.float64)
        wanted = results(ReferenceGraphAttention(2, 3), edges, 2, 3, torch.float64)
        torch.testing.assert_close(found, wanted)


def test_it_has_no_weights_of_its_own() -> None:
    assert not list(PeerPygGraphAttention(2, 3).parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the peer takes its Triton backend")
def test_it_is_not_measured_with_what_the_peer_falls_back_to() -> None:
    with pytest.raises(RuntimeError, match="takes its backend 'pyg', not 'triton': that needs a GPU and Triton"):
        PeerTritonGraphAttention(2, 3)


def test_the_benchmark_compares_with_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["graph_attention.py", "--quick", "--graphs", "mesh", "--output", str(file)])
    assert graph_attention.main() == 0
    results = json.loads(file.read_text())
    assert results["environment"]["versions"]["anemoi-models"] == "0.19.0"
    small, mesh = ({kernel["name"]: kernel for kernel in work["kernels"]} for work in results["works"])
    peer, own = mesh["peer pyg"], mesh["factored"]
    assert peer["relative_error"]["output"] < 3e-2
    speed = peer["forward_backward_ms"]["median"] / own["forward_backward_ms"]["median"]
    assert own["beside_peer"]["speed"] == pytest.approx(speed)
    assert len(own["beside_peer"]["errors"]) == 7
    assert small["reference"]["beside_peer"]["worst_error"] > 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "peer pyg" in printed
