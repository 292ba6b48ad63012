"""Checkpoints that are not what was written: told of in words, before anything is done with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_checkpoint
import torch

from etesian import cli
from etesian.checkpoint.export import export
from etesian.checkpoint.read import load_checkpoint
from etesian.checkpoint.summary import summarise
from etesian.commands import common
from etesian.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole() -> bytes:
    """A whole checkpoint."""
    import io

    file = io.BytesIO()
    torch.save(small_checkpoint.make()[0], file)
    return file.getvalue()


@pytest.fixture
def file(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    common.register_kinds()
    (tmp_path / "c.ckpt").write_bytes(whole)
    return tmp_path / "c.ckpt"


Damage = Callable[[dict[str, Any]], Any]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda c: c["etesian"].pop("config"), "config is missing"),
    "no model": (lambda c: c["etesian"]["config"].pop("model"), r"config\.model\.kind is missing"),
    "text for slots": (lambda c: c["etesian"]["config"]["model"].update(layer_kernels="x"), "no mapping of slots"),
    "text for a slot": (
        lambda c: c["etesian"]["config"]["model"]["encoder"].update(layer_kernels={"MLP": "x"}), "no mapping of slots"),
    "no kernels": (lambda c: c["etesian"].pop("kernels"), "kernels are missing"),
    "kernels as text": (lambda c: c["etesian"].update(kernels=["x"]), r"kernels\[0\] is no record"),
    "a key too many": (lambda c: c["etesian"]["kernels"][0].update(zzz=1), r"kernels\[0\] has an unknown key 'zzz'"),
    "a key too few": (lambda c: c["etesian"]["kernels"][0].pop("slot"), r"kernels\[0\] lacks slot"),
    "arguments as text": (lambda c: c["etesian"]["kernels"][1].update(arguments="x"), r"kernels\[1\].arguments is 'x'"),
    "compile as text": (lambda c: c["etesian"]["kernels"][1].update(compile="x"), r"kernels\[1\].compile is 'x'"),
    "no variables": (lambda c: c["etesian"].pop("variables"), "variables are missing"),
    "a number for names": (lambda c: c["etesian"]["variables"].update(names=3), r"variables\.names is no list"),
    "unknown roles": (lambda c: c["etesian"]["variables"].update(forcing=["zzz"]), "roles of unknown variables"),
    "no version": (lambda c: c["etesian"].pop("version"), "version is no text"),
    "no epoch": (lambda c: c.pop("epoch"), "epoch is no number"),
    "no run": (lambda c: c["etesian"].pop("run"), "run is missing"),
    "no dataset": (lambda c: c["etesian"].pop("dataset"), "dataset is missing"),
    "no step": (lambda c: c["etesian"]["dataset"].update(step={}), r"dataset\.step is missing"),
    "no coordinates": (lambda c: c["etesian"].pop("coordinates"), "coordinates are missing"),
    "no latitudes": (lambda c: c["etesian"]["coordinates"].pop("latitudes"), r"coordinates\.latitudes is missing"),
    "no statistics": (lambda c: c["etesian"].pop("statistics"), "statistics are missing"),
    "no mean": (lambda c: c["etesian"]["statistics"].pop("mean"), r"statistics\.mean is missing"),
    "short mean": (lambda c: c["etesian"]["statistics"].update(mean=torch.zeros(2)), r"mean has shape \[2\] for 4"),
    "no graph": (lambda c: c["etesian"].pop("graph"), "graph is missing"),
    "no hidden nodes": (lambda c: c["etesian"]["graph"]["nodes"].pop("hidden"), r"graph\.nodes is incomplete"),
    "no edges": (lambda c: c["etesian"]["graph"]["edges"]["data to hidden"].pop("edge_index"), "has no edge_index"),
    "text in the graph": (lambda c: c["etesian"]["graph"]["nodes"]["data"].update(y="x"), r"data\.y is no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_told_of_the_experiment_is_checked(name: str, file: Path) -> None:
    damage, message = DAMAGES[name]
    checkpoint = torch.load(file, weights_only=False)
    damage(checkpoint)
    torch.save(checkpoint, file)
    for act in (load_checkpoint, summarise, lambda path: export(path, "torch", None, CPU)):
        with pytest.raises(UserError, match=message) as caught:
            act(file)
        assert caught.value.problems[0].where == str(file)
        assert "earlier checkpoint" in str(caught.value.problems[0].mend)


def test_a_config_that_is_wrong_is_told_of_the_file(file: Path) -> None:
    checkpoint = torch.load(file, weights_only=False)
    checkpoint["etesian"]["config"]["model"]["zzz"] = 1
    torch.save(checkpoint, file)
    with pytest.raises(UserError, match=r"the config in .*c\.ckpt: .*'zzz'"):
        export(file, "torch", None, CPU)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x11
    file.write_bytes(content)


def test_a_bit_of_a_weight(file: Path) -> None:
    weight = next(v for n, v in load_checkpoint(file)["state_dict"].items() if n.endswith("linear_in.weight"))
    flip(file, file.read_bytes().find(weight.numpy().tobytes()) + 5)
    for act in (load_checkpoint, lambda path: export(path, "torch", None, CPU)):
        with pytest.raises(UserError, match=r"c\.ckpt is damaged: it is not what was written") as caught:
            act(file)
        assert "earlier checkpoint" in str(caught.value.problems[0].mend)
    assert summarise(file)["step"] == 30, "describing reads no tensors"


def test_a_bit_of_what_is_described(file: Path) -> None:
    flip(file, file.read_bytes().find(b"insolation") + 2)
    with pytest.raises(UserError, match="it is not what was written"):
        summarise(file)


def test_an_exported_one_that_tells_half(file: Path) -> None:
    exported = export(file, "torch", None, CPU)
    for damage, message in [
        (lambda about: about["kernels"][0].pop("slot"), "lacks slot"),
        (lambda about: about.update(graph={}), "graph is missing"),
        (lambda about: about.pop("exported"), "does not tell what it was exported from"),
    ]:
        damage(exported.forecaster.about)
        torch.save(exported.forecaster, "out.pt")
        with pytest.raises(UserError, match=message):
            summarise(Path("out.pt"))


def test_lost_weights_are_not_exported(file: Path) -> None:
    checkpoint = torch.load(file, weights_only=False)
    name = next(n for n in checkpoint["state_dict"] if n.endswith("linear_in.weight"))
    checkpoint["state_dict"][name][0, 0] = float("nan")
    torch.save(checkpoint, file)
    with pytest.raises(UserError, match=f"hold NaN or infinity: {name.removeprefix('forecaster.')}\n"):
        export(file, "torch", None, CPU)


@pytest.mark.parametrize("name", ["{LayerNorm: {_target_: torch.nn.RMSNorm}}", "a/b", "../x", "a,b", "null", ""])
def test_layer_kernels_takes_a_name(name: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", "export", str(file), "-o", "out.pt", "--layer-kernels", name]) == 2
    said = capsys.readouterr().err
    assert "--layer-kernels takes the name of a preset" in said
    assert "rmsnorm" in said
    assert not Path("out.pt").exists()


def test_a_config_folder_that_is_not_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", "export", str(file), "-o", "out.pt", "--config-dir", "nowhere"]) == 2
    assert "--config-dir nowhere does not exist" in capsys.readouterr().err
