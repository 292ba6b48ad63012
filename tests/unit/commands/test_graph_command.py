import sys
import types

import numpy as np
import pytest

from etesian import cli

SMALL = ["graph.nodes.hidden.resolution=1"]


@pytest.fixture
def dataset(monkeypatch, tmp_path):
    """A grid in place of the training split, and a cache of its own."""
    latitudes, longitudes = (
        v.ravel() for v in np.meshgrid(np.arange(90, -91, -15.0), np.arange(24) * 15.0, indexing="ij")
    )
    module = types.ModuleType("etesian.data.open")
    grid = types.SimpleNamespace(latitudes=latitudes, longitudes=longitudes)
    module.open_split = lambda name, split, cache_dir: grid if name == "training" else None
    monkeypatch.setitem(sys.modules, "etesian.data.open", module)
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def test_build_writes_the_file_that_describe_reads(dataset, tmp_path, capsys):
    assert cli.main(["graph", "build", "-o", "my.pt", *SMALL]) == 0
    line = capsys.readouterr().out
    assert line.strip().endswith(": my.pt")
    assert (tmp_path / "my.pt").exists()
    assert cli.main(["graph", "describe", "my.pt"]) == 0
    out = capsys.readouterr().out
    assert line.split()[1].rstrip(":") in out
    for text in ("312", "42", "data2hidden", "3 / 3 / 3", "sources without edge", "length, km", "area weight"):
        assert text in out


def test_build_without_a_file_fills_the_cache_and_describe_takes_it_from_there(dataset, tmp_path, capsys):
    assert cli.main(["graph", "build", *SMALL]) == 0
    (file,) = (tmp_path / "cache" / "graphs").iterdir()
    assert capsys.readouterr().out.strip() == f"graph {file.stem}: {file}"
    written = file.stat().st_mtime_ns
    assert cli.main(["graph", "describe", *SMALL]) == 0
    assert str(file) in capsys.readouterr().out
    assert file.stat().st_mtime_ns == written


def test_nodes_without_an_edge_are_counted_and_some_are_named(dataset, capsys):
    assert (
        cli.main(["graph", "describe", "graph.nodes.hidden.resolution=5", "graph.edges.data2hidden.cutoff_factor=0.7"])
        == 0
    )
    row = next(line for line in capsys.readouterr().out.splitlines() if "targets without edge" in line)
    assert ", ..." in row
    assert row.count("none") == 2


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["build", "graph.edges.data2hidden.cutoff_factor=0.1"], "graph.edges.data2hidden.cutoff_factor"),
        (["build", "graph.edges.hidden2hidden.scale_resolutions=[9]"], "graph.edges.hidden2hidden.scale_resolutions"),
        (["describe", "missing.pt"], "missing.pt"),
        (["describe", "folder.pt"], "folder.pt"),
        (["describe", "my.pt", *SMALL], "graph describe"),
        (["describe", "my.pt", "--config-dir", "."], "graph describe"),
    ],
)
def test_mistakes_end_with_status_2_and_name_the_key(dataset, tmp_path, capsys, words, key):
    (tmp_path / "folder.pt").mkdir()
    assert cli.main(["graph", *words]) == 2
    assert f"where:   {key}" in capsys.readouterr().err
