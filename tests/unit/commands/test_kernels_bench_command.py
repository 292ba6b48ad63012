"""``kernels bench``: kernels of slots on rows and on an experiment, the preset, the results, whole steps."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from etesian import cli
from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.kernels.resolve import resolve_kernels

QUICK = ["--repeats", "2", "--min-time", "0.001", "--no-compiled"]
TINY = ["--config-name", "debug", "model.num_channels=8"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded dataset is made, once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.setenv("ETESIAN_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(*arguments: str) -> int:
    return cli.main(["kernels", "bench", *arguments])


def test_rows_need_no_dataset(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = ["--rows", "30,60", "--channels", "16", "--slots", "LayerNorm,Activation", "system.input.dataset=/nope"]
    assert bench(*arguments, *QUICK, "--output", "results.json") == 0
    said = capsys.readouterr().out
    assert "LayerNorm on 30 rows\ninput 30 x 16 float32. Floor fwd+bwd" in said
    assert "Activation on 60 rows\ninput 60 x 64 float32." in said
    assert re.search(r"\* torch\.nn\.LayerNorm eps=1e-05 +[\d.]+ +[\d.]+ +\d+% +[\d.]+ +\de-\d\d +\de-\d\d", said)
    assert re.search(r"  torch\.nn\.RMSNorm eps=1e-06 +[\d.]", said)
    assert max(len(line) for line in said.splitlines()) <= 100
    results = json.loads((folder / "results.json").read_text())
    assert [(s["slot"], s["rows"]) for s in results["slots"]] == [
        ("LayerNorm", 30), ("LayerNorm", 60), ("Activation", 30), ("Activation", 60)]  # fmt: skip
    assert results["settings"]["channels"] == 16
    assert results["environment"]["versions"]["torch"]
    for slot in results["slots"]:
        for kernel in slot["kernels"]:
            if kernel["reason"] is None:
                times = kernel["forward_backward_ms"]
                assert 0 < times["min"] <= times["median"] <= times["max"]
                assert kernel["relative_error"]["output"] < 1e-3


def test_missing_libraries_are_named_once_a_slot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert bench("--rows", "30,60", "--slots", "LayerNorm", *QUICK) == 0
    said = " ".join(capsys.readouterr().out.split())
    missing = "LigerRMSNorm(eps=1e-06): the library is missing (liger-kernel); pip install 'etesian[liger]'"
    assert said.count(missing) == 1


def test_the_shapes_of_an_experiment_and_its_preset(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    written = Path("model", "layer_kernels", "fastest.yaml")
    arguments = [*TINY, "--slots", "QueryNorm,GraphAttention", "model.processor.qk_norm=true", *QUICK]
    assert bench(*arguments, "--write", str(written)) == 0
    said = capsys.readouterr().out
    assert "2,592 data nodes, 42 hidden nodes, times 2 (batch x ensemble)" in said
    assert "QueryNorm on 5,184 data nodes\ninput 5,184 x 4 x 2 float32" in said
    for name in ("data2hidden", "hidden2hidden", "hidden2data"):
        assert f"nodes of {name}\n" in said
    assert f"preset: {written}; use it with model/layer_kernels=fastest\n" in said

    text = (folder / written).read_text()
    assert "# QueryNorm: " in text
    assert "training.precision=32-true, 8 channels; torch" in text
    composed = compose("debug", None, ["model/layer_kernels=fastest", "model.num_channels=8"])
    config = check_tree(composed)
    kernels = resolve_kernels(config.model, preset="fastest", overrides=[])
    families = {record.slot: record.family for record in kernels.records}
    assert families["QueryNorm"] == "layer_norm"
    assert families["GraphAttention"] == "graph_attention"

    assert bench(*arguments, "--write", str(written)) == 2
    assert "is there already" in capsys.readouterr().err
    assert (folder / written).read_text() == text


def test_a_graph_file_stands_for_the_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["graph", "build", "--config-name", "debug", "-o", "graph.pt"]) == 0
    arguments = [*TINY, "system.input.graph=graph.pt", "system.input.dataset=/nope", *QUICK]
    assert bench(*arguments, "--slots", "Activation,GraphAttention") == 0
    said = capsys.readouterr().out
    assert "2,592 data nodes, 42 hidden nodes, times 2 (batch x ensemble), of graph.pt; no dataset is opened" in said
    assert "GraphAttention on 84 nodes of data2hidden" in said


def test_a_preset_elsewhere_is_used_with_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    written = Path("mine", "model", "layer_kernels", "fast.yaml")
    assert bench("--rows", "30", "--slots", "Activation", *QUICK, "--write", str(written)) == 0
    assert "use it with model/layer_kernels=fast --config-dir mine\n" in capsys.readouterr().out
    assert yaml.safe_load(written.read_text())["Activation"] == {"_target_": "torch.nn.GELU"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slots", "LayerNom"], "unknown layer kernel slot 'LayerNom'"),
        (["--rows", "30,many"], "--rows got 'many'"),
        (["--rows", "0"], "--rows got '0'"),
        (["--rows", "\N{ARABIC-INDIC DIGIT THREE}"], "--rows got"),
        (["--rows", ""], "--rows got ''"),
        (["--rows", "30", "--channels", "x"], "--channels got 'x'"),
        (["--rows", "30", "--channels", "10"], "does not divide model.num_channels=10"),
        (["--channels", "64"], "--channels goes with --rows"),
        (["--repeats", "0"], "--repeats got '0'"),
        (["--min-time", "soon"], "--min-time got 'soon'"),
        (["--min-time", "nan"], "--min-time got 'nan'"),
        (["--force"], "--force goes with --write"),
        (["--presets", "torch"], "--presets goes with --end-to-end"),
        (["--write", "fastest.yaml"], "would not be found as a preset"),
        (["--output", "."], ". is a folder"),
        (["--output", "a" * 300], "bytes long"),
        (["--write", "model/layer_kernels/a,b.yaml"], "would not name"),
        (["--write", "model/layer_kernels/rmsnorm.yaml", "--force"], "a preset rmsnorm comes with the package"),
        (
            ["--write", "model/layer_kernels/a.yaml", "--output", "./model/layer_kernels/a.yaml"],
            "--output and --write both name",
        ),
        (["--rows", "30", "--channels", "16", "model.num_channels=32"], "both set model.num_channels"),
        (["--rows", "30", "--channels", "16", "++model.num_channels=16"], "both set model.num_channels"),
        (["--end-to-end", "--rows", "30"], "--rows says nothing to --end-to-end"),
        (["--end-to-end", "--slots", "MLP"], "--slots says nothing to --end-to-end"),
        (["--end-to-end", "--no-compiled"], "--no-compiled says nothing to --end-to-end"),
        (["--end-to-end", "--presets", "torhc"], "there is no preset 'torhc' in model/layer_kernels"),
        (["--end-to-end", "--presets", "torch+everything"], "there is no preset 'everything' in model/compile"),
        (["system.input.dataset=/nowhere.zarr"], "/nowhere.zarr"),
        (["--speed"], "'--speed' is no option"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_whole_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    arguments = [*TINY, "--end-to-end", "--repeats", "2", "--min-time", "0.001", "--output", "steps.json"]
    assert bench(*arguments, "--presets", "torch,layernorm_no_params,rmsnorm,liger") == 0
    said = capsys.readouterr().out
    assert re.search(r"\* torch +[\d.]+ +[\d.]+\.\.[\d.]+ +[\d.]+ +[\d.]+ +0 +0\.\d+", said)
    assert "2 x 3 x 1 x 2,592 x 8 (batch, time, ensemble, points, variables)" in said
    assert "the library is missing (liger-kernel); pip install 'etesian[liger]'" in " ".join(said.split())
    content = json.loads((folder / "steps.json").read_text())
    presets = {entry["preset"]: entry for entry in content["end_to_end"]["presets"]}
    assert {name: entry["own"] for name, entry in presets.items()} == {
        "torch": True, "layernorm_no_params": False, "rmsnorm": False, "liger": False}  # fmt: skip
    # Fresh layer norms with weight 1 and bias 0 are those without parameters.
    assert presets["torch"]["first_loss"] == pytest.approx(presets["layernorm_no_params"]["first_loss"], rel=1e-6)
    assert presets["torch"]["first_loss"] != presets["rmsnorm"]["first_loss"]
    assert presets["torch"]["kernels"][1]["target"] == "torch.nn.LayerNorm"
    assert presets["liger"]["step_ms"] is None
    assert content["slots"] == []


def test_whole_steps_of_an_experiment_with_kernels_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    presets = {"model/layer_kernels": ["layernorm_no_params", "rmsnorm", "torch"], "model/compile": ["none"]}
    monkeypatch.setattr("etesian.places.options_of", lambda group, places: presets[group])
    own = "model.layer_kernels.LayerNorm={_target_: torch.nn.RMSNorm, eps: 1.0e-3}"
    assert bench(*TINY, own, "--end-to-end", "--repeats", "1", "--min-time", "0.001") == 0
    said = capsys.readouterr().out
    assert "* as configured" in said
    assert "torch: the same kernels as configured: what the config itself sets under" in " ".join(said.split())


def test_whole_steps_of_a_preset_that_compiles(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    mine = folder / "model" / "layer_kernels" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("LayerNorm: {_target_: torch.nn.LayerNorm, eps: 1.0e-5, _compile_: {backend: eager}}\n")
    arguments = [*TINY, "--end-to-end", "--repeats", "1", "--min-time", "0.001", "--output", "steps.json"]
    assert bench(*arguments, "--presets", "torch,mine,torch+none") == 0
    assert "torch+none: the same kernels as torch\n" in capsys.readouterr().out
    presets = {e["preset"]: e for e in json.loads((folder / "steps.json").read_text())["end_to_end"]["presets"]}
    assert presets["mine"]["graphs"] > 0
    assert presets["torch"]["graphs"] == 0
    assert presets["mine"]["first_loss"] == pytest.approx(presets["torch"]["first_loss"], rel=1e-6)


@pytest.mark.slow
def test_whole_steps_with_a_preset_of_compilation(folder: Path) -> None:
    arguments = [*TINY, "--end-to-end", "--repeats", "2", "--min-time", "0.001", "--output", "steps.json"]
    assert bench(*arguments, "--presets", "rmsnorm,compiled_rmsnorm,torch+norms") == 0
    presets = {e["preset"]: e for e in json.loads((folder / "steps.json").read_text())["end_to_end"]["presets"]}
    assert presets["compiled_rmsnorm"]["graphs"] > 0
    assert presets["torch+norms"]["graphs"] > 0
    assert presets["compiled_rmsnorm"]["first_loss"] == pytest.approx(presets["rmsnorm"]["first_loss"], rel=1e-5)


def test_no_preset_is_written_of_what_is_compiled_elsewhere(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    written = ["--write", "model/layer_kernels/fastest.yaml"]
    assert bench("--rows", "30", "--slots", "LayerNorm", "model/compile=norms", *QUICK, *written) == 2
    said = capsys.readouterr().err
    assert "where:   model.compile[0]" in said
    assert "mend:    model/compile=none" in said
    assert not list(folder.iterdir())


def test_no_preset_runs_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    assert bench(*TINY, "--end-to-end", "--presets", "liger") == 2
    assert "no preset runs here: liger: slot LayerNorm" in capsys.readouterr().err


def test_results_replace_results_alone(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = ["--rows", "30", "--slots", "Activation", *QUICK, "--output", "r.json"]
    (folder / "r.json").write_text('{"format": 1}')
    assert bench(*arguments) == 2
    said = capsys.readouterr().err
    assert "r.json is there already, and holds no results of this command" in said
    assert "where:   --output" in said
    assert (folder / "r.json").read_text() == '{"format": 1}'
    assert bench(*arguments, "--force") == 0
    assert bench(*arguments) == 0
    assert json.loads((folder / "r.json").read_text())["slots"]
