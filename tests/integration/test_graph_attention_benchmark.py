"""``benchmarks/graph_attention.py`` in its quick form: what it builds, compares, prints and writes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

import graph_attention
import peer_attention
from etesian.data.grids import named_grid
from etesian.errors import UserError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a quick run with the sweeps writes, and prints."""
    file = tmp_path_factory.mktemp("benchmark") / "results.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sys.argv", ["graph_attention.py", "--quick", "--sweep", "--graphs", "mesh,encoder", "--output", str(file)]
        )
        assert graph_attention.main() == 0
    return json.loads(file.read_text())


def test_every_kernel_is_compared_with_float64_and_timed(results: dict) -> None:
    works = {(work["group"], work["name"]): work for work in results["works"]}
    assert list(works) == [
        ("small", "encoder"), ("graphs", "mesh"), ("graphs", "encoder"), ("degree", "1"), ("degree", "3"),
        ("channels", "16 x 16"),
    ]  # fmt: skip
    for (group, _), work in works.items():
        kernels = {kernel["name"]: kernel for kernel in work["kernels"]}
        assert set(kernels) >= {"peer pyg", "factored", "pyg"}
        assert ("reference" in kernels) == (group == "small")
        for name in ("factored", "pyg"):
            errors = kernels[name]["relative_error"]
            assert set(errors["gradients"]) == set(graph_attention.GRADIENTS)
            assert 0 < errors["output"] < 3e-2
            assert max(errors["gradients"].values()) < 3e-2
            assert (kernels[name]["forward_backward_ms"] is None) == (group == "small")


def test_it_is_laid_out_for_the_pages(results: dict) -> None:
    path = Path(__file__).resolve().parents[2] / "docs" / "fill_figures.py"
    text = runpy.run_path(str(path))["graph_attention"](results)
    assert "Mesh to mesh, 162 to 162 nodes, 1,260 edges, 4 heads x 8 channels:" in text
    assert text.count("\n| `factored` | ") == 2
    assert "Not timed: `peer pyg`: " in text
    alone = "`factored`, on the device alone | `pyg`, on the device alone"
    assert f"| heads x channels | `factored` | `pyg` | {alone} | floor |" in text
    assert "\n| 16 x 16 | " in text


def test_a_peer_that_is_not_there_is_said_to_be_missing(results: dict) -> None:
    for work in results["works"]:
        peer = work["kernels"][0]
        assert peer["forward_backward_ms"] is None
        assert "anemoi-models can't be imported" in peer["reason"]
        assert "tests/peers.txt" in peer["reason"]
        assert all(kernel["beside_peer"]["speed"] is None for kernel in work["kernels"][1:])


def test_it_says_on_what_it_was_measured(results: dict) -> None:
    assert results["environment"]["versions"]["torch"] == torch.__version__
    assert results["environment"]["date"]
    assert "graph_attention.py" in results["environment"]["command"][1]
    assert results["settings"]["precision"] == "bf16-true"
    assert results["measured_on_the_device"]["copy_bytes_per_second"] > 1e8


def test_the_floor_is_that_of_the_bytes(results: dict) -> None:
    mesh = results["works"][1]
    width, edges = 2 * 4 * 8, mesh["num_edges"]  # bytes of a node's heads
    inputs = 3 * 162 * width + 2 * edges * 11 + 2 * 4 * 8 * 12
    moved = 3 * inputs + 2 * 162 * width
    copied = results["measured_on_the_device"]["copy_bytes_per_second"]
    assert mesh["floor_ms"]["forward_backward"] == pytest.approx(1e3 * moved / copied)


@pytest.mark.parametrize(
    ("degree", "first"), [(1, [0, 1, 2]), (3, [0, 3, 6])], ids=["one edge a node", "three edges a node"]
)
def test_even_edges(degree: int, first: list[int]) -> None:
    edges = graph_attention.even_edges(500, degree)
    assert edges.dst_ptr[:3].tolist() == first
    assert edges.num_edges == 500 * degree
    assert (edges.src - edges.dst).abs().max() <= 200


def test_the_rows_of_n320_are_those_of_eccodes() -> None:
    mine, grid = graph_attention.n320(), named_grid("n320")
    assert mine.row_lengths == grid.row_lengths
    assert len(mine.latitudes) == 542_080


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["graph_attention.py"])
    assert graph_attention.main() == 2
    assert "this machine has 0 CUDA device(s)" in capsys.readouterr().err


def test_kernels_may_be_named() -> None:
    work = graph_attention.Work("graphs", "mesh", graph_attention.even_edges(5, 2), 2, 4)
    named = graph_attention.contestants(work, peer_attention.PYG, ["factored"])
    assert [graph_attention.short(candidate) for candidate in named] == ["peer pyg", "factored"]
    with pytest.raises(UserError, match="there is no kernel factord") as error:
        graph_attention.contestants(work, peer_attention.PYG, ["factord"])
    assert "factored, " in error.value.problems[0].allowed


def test_ratios_to_the_peer() -> None:
    from etesian.kernels.bench.accuracy import Errors
    from etesian.kernels.bench.results import KernelResult
    from etesian.kernels.bench.timing import Spread, Timing

    def result(milliseconds: float, memory: int, error: float) -> KernelResult:
        def timing(factor: float) -> Timing:
            return Timing(Spread(factor * milliseconds, 0.0, 0.0), 0.0, None, 1)

        errors = Errors(error, dict.fromkeys(graph_attention.GRADIENTS, error) | {"key": 0.5 * error})
        return KernelResult("", "", {}, forward=timing(1), both=timing(4), peak_bytes=memory, errors=errors)

    peer, own = result(3.0, 400, 2e-3), result(1.0, 100, 3e-3)
    peer.errors.gradients["query"] = 1e-3
    found = graph_attention.beside(own, peer)
    assert (found["speed"], found["forward_speed"], found["memory"]) == (3.0, 3.0, 0.25)
    assert found["errors"] == pytest.approx(dict.fromkeys(found["errors"], 1.5) | {"query": 3.0})
    assert found["worst_error"] == pytest.approx(3.0)
    assert graph_attention.beside(peer, peer) is None
