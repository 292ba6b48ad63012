"""The checkpoint for inference of a run, in both forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small_checkpoint
import torch
from anemoi.utils.checkpoints import load_metadata
from safetensors import safe_open

from etesian import cli
from etesian.checkpoint.inference import FILE, FOLDER, InferenceCheckpoint
from etesian.checkpoint.open import open_forecaster
from etesian.checkpoint.summary import summarise
from etesian.errors import UserError
from etesian.inference import load

CPU = torch.device("cpu")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkpoints."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def write(folder: Path, *overrides: str) -> InferenceCheckpoint:
    checkpoint, _ = small_checkpoint.make(*overrides)
    torch.save(checkpoint, folder / "last.ckpt")
    inference = InferenceCheckpoint(folder, checkpoint["etesian"], CPU)
    inference.write(checkpoint, folder / "last.ckpt")
    return inference


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize("name", [FILE, FOLDER, "last.ckpt"])
def test_each_form_is_the_model_of_the_run(
    tmp_path: Path, name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, f"training.precision={precision}")
    forecaster = small_checkpoint.make(f"training.precision={precision}")[1]
    found = open_forecaster(tmp_path / name)
    x = small_checkpoint.states(3)
    assert torch.equal(found.rollout(x, 3), forecaster.rollout(x, 3))
    assert found.about["run"]["id"] == "small"
    assert found.about["exported"]["step"] == 30
    assert torch.equal(found.about["coordinates"]["latitudes"], small_checkpoint.coordinates()["latitudes"])


def test_nothing_random_of_the_run_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint, _ = small_checkpoint.make()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    inference = InferenceCheckpoint(tmp_path, checkpoint["etesian"], CPU)
    inference.write(checkpoint, tmp_path / "last.ckpt")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_second_state_replaces_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inference = write(tmp_path)
    checkpoint, _ = small_checkpoint.make()
    checkpoint["state_dict"] = {
        name: value + 1 if value.is_floating_point() else value for name, value in checkpoint["state_dict"].items()
    }
    checkpoint["global_step"] = 40
    inference.write(checkpoint, tmp_path / "last.ckpt")
    for name in (FILE, FOLDER):
        found = open_forecaster(tmp_path / name)
        assert found.about["exported"]["step"] == 40
        weight = found.state_dict()["model.decoder.output.weight"]
        assert torch.equal(weight, checkpoint["state_dict"]["forecaster.model.decoder.output.weight"])
    assert sorted(file.name for file in tmp_path.iterdir()) == [FOLDER, FILE, "last.ckpt"]


def test_the_metadata_are_those_of_the_anemoi_tools(written: Path) -> None:
    metadata, arrays = load_metadata(str(written / FILE), supporting_arrays=True)
    assert metadata["metadata_inference"] == {
        "dataset_names": ["data"],
        "task": "forecaster",
        "data": {
            "data_indices": {"input": {"t": 0, "insolation": 1, "q": 2}, "output": {"t": 0, "q": 1, "tp": 2}},
            "variable_types": {"forcing": ["insolation"], "prognostic": ["t", "q"], "diagnostic": ["tp"]},
            "timesteps": {
                "input_relative_date_indices": [0, 1], "output_relative_date_indices": [2], "timestep": "6h",
            },
        },
    }  # fmt: skip
    indices = metadata["data_indices"]["data"]
    assert indices["model"]["input"] == {
        "full": [0, 1, 2], "forcing": [1], "prognostic": [0, 2], "diagnostic": [],
    }  # fmt: skip
    assert indices["model"]["output"]["prognostic"] == [0, 1]
    assert indices["data"]["output"] == {"full": [0, 2, 3], "forcing": [1], "prognostic": [0, 2], "diagnostic": [3]}
    assert metadata["config"]["training"]["precision"] == "32"
    assert metadata["run_id"] == "small"
    assert metadata["dataset"]["data"]["variables"] == ["t", "insolation", "q", "tp"]
    assert metadata["dataset"]["data"]["variables_metadata"]["q"] == {}
    assert metadata["provenance_training"]["module_versions"] == {"torch": "2.6.0"}
    assert metadata["etesian"]["config"]["model"]["num_channels"] == 16
    for name, values in small_checkpoint.coordinates().items():
        np.testing.assert_array_equal(arrays["data"][name], values.numpy())


def test_neither_the_trainer_nor_kernel_libraries_are_imported(written: Path) -> None:
    program = f"""
import sys
BLOCKED = ("pytorch_lightning", "lightning", "lightning_fabric", "hydra", "omegaconf", "liger_kernel", "triton")
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import torch
forecaster = torch.load({FILE!r}, weights_only=False)
print(forecaster.predict_step({{"data": torch.zeros(1, 2, 14, 3)}})["data"].shape)
from etesian.inference import load
print(type(load({FOLDER!r})).__name__)
assert not set(BLOCKED) & {{name.partition(".")[0] for name in sys.modules}}
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=written, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["torch.Size([1, 1, 1, 14, 3])", "Forecaster"]


def test_a_kernel_without_a_plain_counterpart_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_norms.py").write_text(
        "import torch\n\n\nclass OwnNorm(torch.nn.LayerNorm):\n    pass\n"
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    inference = write(tmp_path, "model.layer_kernels.LayerNorm={_target_: own_norms.OwnNorm}")
    assert [record.target for record in inference.own] == ["own_norms.OwnNorm"]
    (line,) = inference.needs()
    assert line == (
        f"{FILE} needs {tmp_path / 'own_norms.py'} where it is to run: model.LayerNorm: own_norms.OwnNorm(eps=1e-05), "
        "as family 'custom:own_norms.OwnNorm' has no kernel in plain PyTorch"
    )
    assert write(tmp_path).needs() == []
    for name in (FILE, FOLDER):
        assert summarise(tmp_path / name)["model"]["channels"] == 16


def test_describe_reads_both(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name in (FILE, FOLDER):
        assert cli.main(["checkpoint", "describe", name, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
        assert (found[name].pop("file"), found[name].pop("bytes") > 0) == (name, True)
    assert found[FILE] == found[FOLDER]
    assert found[FILE]["contains"] == "inference"
    assert found[FILE]["timestep"] == "6h"
    assert found[FILE]["dataset"]["arguments"] == {"args": ["small.zarr"], "kwargs": {}}
    assert cli.main(["checkpoint", "describe", FOLDER]) == 0
    assert "8 dates, 2000-01-01T00:00:00" in capsys.readouterr().out


def test_two_files_that_were_not_written_together(written: Path) -> None:
    content = json.loads((written / FOLDER / "metadata.json").read_text())
    (written / FOLDER / "metadata.json").write_text(json.dumps(content | {"id": "another"}))
    with pytest.raises(UserError, match="were not written together"):
        load(written / FOLDER)


def test_damaged_folders(written: Path) -> None:
    folder = written / FOLDER
    whole, text = (folder / "model.safetensors").read_bytes(), (folder / "metadata.json").read_text()
    (folder / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(UserError, match=r"inference-last is damaged: model\.safetensors"):
        load(folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "metadata.json").write_text("{")
    with pytest.raises(UserError, match=r"metadata\.json is not JSON"):
        load(folder)
    (folder / "metadata.json").write_text(json.dumps(json.loads(text) | {"version": 9}))
    with pytest.raises(UserError, match="is of version 9"):
        load(folder)
    (folder / "metadata.json").write_text(json.dumps(json.loads(text) | {"about": {}}))
    with pytest.raises(UserError, match="is damaged: KeyError: 'kernels'"):
        load(folder)
    with pytest.raises(UserError, match="does not tell what it was exported from"):
        summarise(folder)
    (folder / "metadata.json").unlink()
    with pytest.raises(UserError, match=r"holds no metadata\.json"):
        load(folder)
    with pytest.raises(UserError, match="is no folder"):
        load(written / "nothing")


def test_a_kernel_that_means_another_thing_here(written: Path) -> None:
    content = json.loads((written / FOLDER / "metadata.json").read_text())
    record = next(record for record in content["about"]["kernels"] if record["slot"] == "LayerNorm")
    record["arguments"], record["constants"] = {}, record["constants"] | {"eps": 1e-3}
    (written / FOLDER / "metadata.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"made the weights of .*inference-last"):
        load(written / FOLDER)


def test_the_tensors_are_named_by_what_they_are(written: Path) -> None:
    with safe_open(written / FOLDER / "model.safetensors", framework="pt") as file:
        groups = {name.split("/")[0] for name in file.keys()}  # noqa: SIM118
    assert groups == {"weights", "graph", "statistics", "coordinates"}
