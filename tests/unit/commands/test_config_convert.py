"""The command ``config convert``: what it writes, and what it refuses before it writes anything."""

from __future__ import annotations

from pathlib import Path

import peer_configs
import pytest

from etesian.cli import main
from etesian.compose import compose
from small_stores import write_store


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trees")
    store = write_store(folder / "s.zarr", variables=peer_configs.VARIABLES, metadata=peer_configs.METADATA)
    peer_configs.nested(folder / "theirs", store)
    return folder


def test_it_writes_a_config_and_a_report(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "convert", str(trees / "theirs"), "-o", "mine.yaml", "training.max_steps=7"]) == 0
    said = capsys.readouterr().out
    assert "no output has this name" in said
    assert "anemoi-training config validate --config-name mine" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.report.md", "mine.yaml"]
    text = (tmp_path / "mine.yaml").read_text()
    assert "\n- model: graphtransformer\n- model/layer_kernels: torch\n" in text
    assert str(trees / "s.zarr") in text
    tree = compose("mine", tmp_path, []).tree
    assert tree["training"]["max_steps"] == tree["training"]["optimization"]["lr_scheduler"]["t_initial"] == 7
    assert tree["dataloader"]["test"]["dataset_config"] == {"dataset": str(trees / "s.zarr"), "frequency": "6h"}
    assert "training.max_steps" in (tmp_path / "mine.report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "-o", "mine.yaml"], "nowhere does not exist"),
        (["theirs/config.yaml", "-o", "mine.yaml"], "theirs/config.yaml is a file"),
        (["theirs", "-o", "mine"], "the config is named *.yaml"),
        (["theirs", "-o", "there.yaml"], "there.yaml is there already, and nothing is overwritten"),
        (["theirs", "-o", "half.yaml"], "half.report.md is there already"),
        (["theirs", "-o", "mine.yaml", "--also", "nowhere"], "--also"),
        (["theirs", "-o", "mine.yaml", "--config-name", "confg"], "did you mean 'config'"),
        (["theirs", "-o", "mine.yaml", "model.num_chanels=3"], "model.num_chanels"),
        (["theirs", "-o", "mine.yaml", "+model.num_chanels=3"], "is no key of anemoi-training that is known here"),
        (["theirs", "-o", "mine.yaml", "training.max_steps=1,2"], "this is a sweep"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    trees: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(trees)
    for name in ("there.yaml", "half.report.md"):
        (trees / name).write_text("")
    before = sorted(path.name for path in trees.iterdir())
    assert main(["config", "convert", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in trees.iterdir()) == before


@pytest.mark.slow
def test_files_of_a_release_are_found_in_another_folder(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.yaml").write_text("defaults: [config, _self_]\nmodel: {num_channels: 32}\n")
    also = ["--also", str(trees / "theirs"), "--config-name", "mine"]
    assert main(["config", "convert", str(folder), "-o", "out.yaml", *also]) == 0
    assert compose("out", tmp_path, []).tree["model"]["num_channels"] == 32
