"""Training on a graph file that was made elsewhere, and what is said where it can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import SMALL, train

from etesian import cli
from etesian.checkpoint.content import graph_of
from etesian.graph.store import load_graph, save_graph
from small_stores import write_store

TRAIN = [option for option in SMALL if not option.startswith("graph.")] + [
    "training.run_id=run", "system.input.dataset=small.zarr",
]  # fmt: skip
EXISTING = ["graph=existing", "system.input.graph=mine.pt"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Hold a store, and a graph of it whose edges are in another order."""
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "small.zarr")
    data = ["--config-name", "own_data", "system.input.dataset=small.zarr", "data.forcing=[forcing]"]
    assert cli.main(["graph", "build", "-o", "built.pt", *data, "graph.nodes.hidden.resolution=1"]) == 0
    graph = load_graph(Path("built.pt"))
    for kind in graph.edge_types:
        order = torch.randperm(graph[kind].edge_index.shape[1], generator=torch.Generator().manual_seed(0))
        for name, value in list(graph[kind].items()):
            graph[kind][name] = value.index_select(1 if name == "edge_index" else 0, order)
    del graph.fingerprint
    save_graph(graph, Path("mine.pt"))
    capsys.readouterr()
    return tmp_path


def test_it_trains_as_on_the_same_graph_built_here(folder: Path) -> None:
    assert train(*TRAIN, *EXISTING) == 0
    checkpoint = torch.load("outputs/run/checkpoints/last.ckpt", weights_only=False)
    stored, built = graph_of(checkpoint["etesian"]), load_graph(Path("built.pt"))
    for kind in built.edge_types:
        assert torch.equal(stored[kind].edge_index, built[kind].edge_index)
        assert torch.equal(stored[kind].edge_length, built[kind].edge_length)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["graph=existing"], "system.input.graph, which is null"),
        ([*EXISTING, "graph.nodes={hidden: {resolution: 1}}"], "graph.nodes does nothing with graph.existing"),
        ([*EXISTING, "+graph.edges={hidden2data: {num_nearest_neighbours: 2}}"], "graph.edges does nothing"),
        ([*EXISTING, "graph.overwrite=true"], "the file is never replaced"),
        ([*EXISTING, "graph.existing.data_nodes=dta"], "did you mean 'data'?"),
        (["graph.nodes=null"], "graph.nodes is missing"),
    ],
)
def test_it_stops_at_the_door(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "validate", *TRAIN, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "outputs").exists()


def test_describe_and_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graph", "describe", *TRAIN, *EXISTING]) == 0
    assert "hidden2hidden" in capsys.readouterr().out
    assert cli.main(["graph", "build", *TRAIN, *EXISTING]) == 2
    assert "graph build builds nothing with graph=existing" in capsys.readouterr().err
    assert cli.main(["config", "validate", *TRAIN, *EXISTING]) == 0
    assert "(of mine.pt)" in capsys.readouterr().out.replace("\n", " ")
