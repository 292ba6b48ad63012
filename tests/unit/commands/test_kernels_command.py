"""``kernels list`` and ``kernels check``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from etesian import cli
from etesian.kernels.slots import SLOTS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Return what stands beside and below each first word of the tables."""
    assert cli.main(["kernels", "list", *arguments]) == 0
    rows: dict[str, str] = {}
    key = ""
    for line in capsys.readouterr().out.splitlines():
        if line[1:2].strip():
            key, _, rest = line.strip().partition(" ")
            rows[key] = rest.strip()
        elif line.strip():
            rows[key] = f"{rows.get(key, '')} {line.strip()}"
    return rows


def test_list_shows_how_slots_are_built_called_and_filled(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys)
    for slot in SLOTS.values():
        for text in (slot.construction, slot.call, slot.target):
            assert text in rows[slot.name]
    assert "torch.nn.LayerNorm(eps=1e-05)" in rows["LayerNorm"]


def test_list_shows_presets_and_libraries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "9.9", "transformer-engine": "2.5"}
    monkeypatch.setattr("etesian.kernels.libraries.installed_version", versions.get)
    rows = listed(capsys)
    assert rows["torch"] == "9.9"
    assert rows["transformer-engine"] == "2.5"
    assert rows["liger-kernel"] == "not installed: pip install 'etesian[liger]'"
    for preset in ("liger", "liger_layernorm", "liger_swiglu"):  # by their path, or by that of an adapter
        assert "liger-kernel: not installed: pip install 'etesian[liger]'" in rows[preset]
    assert "not installed" not in rows["transformer_engine"]
    assert "RMS norms of torch" in rows["rmsnorm"]


def test_list_shows_presets_of_the_user(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    mine = folder / "configs" / "model" / "layer_kernels"
    mine.mkdir(parents=True)
    (mine / "mine.yaml").write_text("# My norms.\nLayerNorm: {_target_: liger_kernel.no.Matter}\n")
    (mine / "rmsnorm.yaml").write_text("LayerNorm: {_target_: torch.nn.RMSNorm}\n")
    rows = listed(capsys, "--config-dir", "configs")
    assert rows["mine"].startswith("My norms.")
    assert "RMS norms of torch." not in rows["rmsnorm"]
    assert "mine" not in listed(capsys)


def test_list_with_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "list", "--config-dir", "nowhere"]) == 2
    assert "--config-dir nowhere does not exist" in capsys.readouterr().err


def test_check_prints_what_ran_and_opens_no_dataset(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = ["model/layer_kernels=rmsnorm", "training.precision=bf16-mixed", "system.input.dataset=/nope.zarr"]
    assert cli.main(["kernels", "check", *arguments]) == 0
    said = capsys.readouterr().out
    assert "torch.nn.RMSNorm(eps=1e-06)" in said
    assert "preset rmsnorm" in said
    assert said.rstrip().endswith("run forward and backward on cpu with training.precision=bf16-mixed")
    assert not list(folder.iterdir())


def test_check_stops_on_a_kernel_that_can_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    target = "model.layer_kernels.Activation._target_=faulty_kernels.FailsAsActivation"
    assert cli.main(["kernels", "check", target]) == 2
    said = capsys.readouterr()
    assert "slot Activation of the model: faulty_kernels.FailsAsActivation does not run on cpu" in said.err
    assert said.out == ""


def test_check_stops_on_a_missing_library(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert cli.main(["kernels", "check", "model/layer_kernels=liger"]) == 2
    assert "mend:    pip install 'etesian[liger]'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_check_stops_without_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "check", "system=gpu"]) == 2
    said = capsys.readouterr().err
    assert "'cuda:0'" in said
    assert "where:   system.hardware" in said
