import numpy as np
import pytest
import torch
from graph_cases import GRIDS, scattered, settings
from torch_geometric.data import HeteroData

from etesian.errors import UserError
from etesian.graph import store
from etesian.graph.store import describe, graph_path, load_graph, load_or_build, save_graph

GRID = scattered(60)


@pytest.fixture
def builds(monkeypatch):
    """Count the graphs that are built."""
    made = []

    def counted(*args):
        made.append(args)
        return build(*args)

    build = store.build_graph
    monkeypatch.setattr(store, "build_graph", counted)
    return made


def get(path, cache, **change):
    return load_or_build(*GRID, settings(resolution=1, **change), path, cache)


def same(one, other):
    return one.fingerprint == other.fingerprint and all(
        torch.equal(a[name], b[name]) for a, b in zip(one.stores[1:], other.stores[1:], strict=True) for name in a
    )


def test_a_graph_is_built_once_and_then_read(tmp_path, builds):
    first, second = get(None, tmp_path), get(None, tmp_path)
    assert len(builds) == 1
    assert same(first, second)
    assert [file.name for file in (tmp_path / "graphs").iterdir()] == [f"{first.fingerprint}.pt"]
    assert graph_path(tmp_path, first.fingerprint).exists()


def test_a_named_file_is_used_and_no_temporary_file_stays(tmp_path, builds):
    path = tmp_path / "new" / "folder" / "my.pt"
    assert same(get(path, tmp_path), get(path, tmp_path))
    assert len(builds) == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_stale_graph_is_rebuilt(tmp_path, builds):
    path = tmp_path / "my.pt"
    first = get(path, tmp_path)
    second = get(path, tmp_path, k=4)
    assert len(builds) == 2
    assert second.fingerprint != first.fingerprint
    assert same(load_graph(path), second)


def test_overwrite_rebuilds_what_fits(tmp_path, builds):
    get(None, tmp_path)
    get(None, tmp_path, overwrite=True)
    assert len(builds) == 2


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_a_broken_file_is_rebuilt(tmp_path, builds, keep):
    path = tmp_path / "my.pt"
    first, whole = get(path, tmp_path), path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    assert same(get(path, tmp_path), first)
    assert len(builds) == 2
    assert same(load_graph(path), first)


def test_a_named_file_of_text_is_not_replaced(tmp_path, builds):
    path = tmp_path / "notes.pt"
    path.write_text("notes")
    with pytest.raises(UserError, match="neither used nor replaced"):
        get(path, tmp_path)
    assert path.read_text() == "notes"
    assert not builds


def test_a_folder_in_the_way(tmp_path, builds):
    (tmp_path / "my.pt").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a folder"):
        get(tmp_path / "my.pt", tmp_path)
    with pytest.raises(UserError, match="can't be written"):
        get(tmp_path / "file" / "my.pt", tmp_path)


@pytest.mark.parametrize("content", [HeteroData(), {"state_dict": {}}, np.float64], ids=["graph", "dict", "class"])
def test_a_named_file_made_by_something_else_is_not_replaced(tmp_path, builds, content):
    path = tmp_path / "theirs.pt"
    torch.save(content, path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="neither used nor replaced") as caught:
        get(path, tmp_path)
    assert caught.value.problems[0].where == "system.input.graph"
    assert path.read_bytes() == before
    assert not builds
    assert get(path, tmp_path, overwrite=True).fingerprint == load_graph(path).fingerprint


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "my.pt"
    first = get(path, tmp_path)

    def full(graph, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        get(path, tmp_path, k=4)
    assert list(tmp_path.iterdir()) == [path]
    assert same(load_graph(path), first)


def test_a_file_is_named_pt(tmp_path, builds):
    with pytest.raises(UserError, match=r"named \*\.pt"):
        get(tmp_path / "graph.zarr", tmp_path)
    with pytest.raises(UserError, match=r"named \*\.pt"):
        save_graph(HeteroData(), tmp_path / "graph")
    assert not builds


def test_loading_names_the_file_that_is_missing_or_is_no_graph(tmp_path):
    with pytest.raises(UserError, match="no such graph file"):
        load_graph(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("text")
    with pytest.raises(UserError, match="can't be read as a graph") as caught:
        load_graph(tmp_path / "text.pt")
    assert caught.value.problems[0].where == str(tmp_path / "text.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(UserError, match="holds a list"):
        load_graph(tmp_path / "list.pt")


def test_reading_a_graph_runs_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save(Trap(), tmp_path / "trap.pt")
    with pytest.raises(UserError, match="can't be read as a graph"):
        load_graph(tmp_path / "trap.pt")
    assert not (tmp_path / "ran").exists()


def test_describe_counts_what_is_there(tmp_path):
    inside = [60.0 > latitude > 20.0 for latitude in GRIDS["regular without poles"][0]]
    grid = [values[inside] for values in GRIDS["regular without poles"]]
    graph = load_or_build(*grid, settings(norm="unit-max"), None, tmp_path)
    summary = describe(graph)
    assert summary["nodes"] == {"data": {"count": 144}, "hidden": {"count": 162}}
    assert summary["fingerprint"] == graph.fingerprint
    assert summary["area_weight"]["data"]["max"] == 1.0
    decoder = summary["edges"]["hidden2data"]
    assert decoder["count"] == 3 * 144
    assert decoder["target_degree"] == {"min": 3, "mean": 3.0, "max": 3}
    encoder = summary["edges"]["data2hidden"]
    assert encoder["sources_without_edge"] == []
    alone = encoder["targets_without_edge"]
    assert alone == sorted(set(range(162)) - set(graph["data", "to", "hidden"].edge_index[1].tolist()))
    assert np.rad2deg(graph["hidden"].x[alone, 0].numpy()).min() < -80
    processor = summary["edges"]["hidden2hidden"]
    assert processor["length_km"]["max"] == pytest.approx(6371.0 * np.arctan(2.0), rel=1e-5)
    assert processor["source_degree"]["mean"] == pytest.approx(1260 / 162)
