"""Runs in which something is compiled train what runs without it train, go on from each other, and say what is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from runs import SMALL, assert_same_run, curve, losses, run, weights

from etesian import cli
from small_stores import write_store

pytestmark = pytest.mark.timeout(900)

EXACT = [*SMALL, "training.precision=64-true", "diagnostics.scores.enabled=false"]
NORMS = ["model/compile=norms", "model.compile.0.options.backend=aot_eager"]
BLOCKS = ["model/compile=blocks", "model.compile.0.options.backend=aot_eager"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"system.input.dataset={write_store(tmp_path_factory.mktemp('data') / 'waves.zarr')}"


def assert_close(one: Path, other: Path) -> None:
    for name in ("train_loss", "val_loss"):
        assert list(losses(one, name)) == list(losses(other, name))
        assert curve(other, name) == pytest.approx(curve(one, name), rel=1e-12)


@pytest.mark.slow
def test_norms(cache: Path, store: str, tmp_path: Path) -> None:
    run(tmp_path, cache, *EXACT, store, "training.run_id=plain")
    done = run(tmp_path, cache, *EXACT, store, *NORMS, "training.run_id=compiled")
    plain, compiled = (tmp_path / "outputs" / name for name in ("plain", "compiled"))
    assert_close(plain, compiled)
    assert "compiled: LayerNorm (9 modules, fullgraph, dynamic=False, backend=aot_eager)" in done.stdout
    assert "the first batch compiled 2 graphs in " in done.stdout
    assert done.stderr == ""
    assert list(weights(compiled)) == list(weights(plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["training.accum_grad_batches=2"],
        ["task.rollout={start: 1, epoch_increment: 1, maximum: 2}"],
        [f"model.{part}.gradient_checkpointing=true" for part in ("encoder", "processor", "decoder")],
        ["model=transformer"],
    ],
    ids=["plain", "accumulated", "rollout", "checkpointed", "transformer"],
)
def test_blocks(cache: Path, store: str, tmp_path: Path, options: list[str]) -> None:
    run(tmp_path, cache, *EXACT, store, *options, "training.run_id=plain")
    run(tmp_path, cache, *EXACT, store, *options, *BLOCKS, "training.run_id=compiled")
    assert_close(*(tmp_path / "outputs" / name for name in ("plain", "compiled")))


@pytest.mark.slow
def test_a_run_goes_on_compiled_and_otherwise_compiled(cache: Path, store: str, tmp_path: Path) -> None:
    every = ["diagnostics.checkpoint.every_n_train_steps={save_frequency: 4, num_models_saved: -1}"]
    run(tmp_path, cache, *EXACT, store, *every, *NORMS, "training.run_id=whole")
    outputs = tmp_path / "outputs"
    (kept,) = (outputs / "whole" / "checkpoints").glob("*step_000004.ckpt")
    ways = {"same": NORMS, "other": BLOCKS, "none": []}
    for name, way in ways.items():
        shutil.copytree(outputs / "whole", outputs / name)
        shutil.copy(kept, outputs / name / "checkpoints" / "last.ckpt")
        done = run(tmp_path, cache, *EXACT, store, *every, *way, f"training.run_id={name}")
        assert "step 4" in done.stdout
        assert_close(outputs / "whole", outputs / name)
    assert_same_run(outputs / "whole", outputs / "same")


@pytest.mark.slow
def test_two_processes(cache: Path, store: str, tmp_path: Path) -> None:
    batches = {1: "{training: 2, validation: 2, test: 2}", 2: "{training: 1, validation: 1, test: 1}"}
    done = {}
    for processes, size in batches.items():
        options = [f"system.hardware.num_gpus_per_node={processes}", f"dataloader.batch_size={size}"]
        done[processes] = run(tmp_path, cache, *EXACT, store, *NORMS, *options, f"training.run_id=of-{processes}")
    one, two = (tmp_path / "outputs" / f"of-{processes}" for processes in batches)
    for name in ("train_loss", "val_loss"):
        assert curve(two, name) == pytest.approx(curve(one, name), rel=1e-9)
    assert done[2].stdout.count("the first batch compiled ") == 1
    assert done[2].stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_the_default_compiler(cache: Path, store: str, tmp_path: Path, kind: str) -> None:
    options = [*EXACT, store, f"model={kind}", "training.max_steps=3"]
    run(tmp_path, cache, *options, "training.run_id=plain")
    run(tmp_path, cache, *options, "model/compile=blocks", "training.run_id=compiled")
    assert_close(*(tmp_path / "outputs" / name for name in ("plain", "compiled")))


@pytest.mark.slow
def test_the_compiled_preset(cache: Path, store: str, tmp_path: Path) -> None:
    for preset in ("rmsnorm", "compiled_rmsnorm"):
        run(tmp_path, cache, *EXACT, store, f"model/layer_kernels={preset}", f"training.run_id={preset}")
    plain, compiled = (tmp_path / "outputs" / name for name in ("rmsnorm", "compiled_rmsnorm"))
    assert_close(plain, compiled)
    assert list(weights(compiled)) == list(weights(plain))
    (record,) = (r for r in json.loads((compiled / "kernels.json").read_text()) if r["slot"] == "LayerNorm")
    assert record["compile"] == {"fullgraph": True, "dynamic": False}
    fork = ["training.load_weights_only=true", f"training.fork_run_id={compiled / 'checkpoints' / 'last.ckpt'}"]
    run(tmp_path, cache, *EXACT, store, "model/layer_kernels=rmsnorm", *fork, "training.run_id=forked")


@pytest.mark.parametrize(
    ("overrides", "where", "said"),
    [
        (["model.compile=[{kernel:LayerNrom}]"], "model.compile[0].kernel", "did you mean 'LayerNorm'?"),
        (["model.compile=[{module:etesian.model.block.Blok}]"], "model.compile[0].module", "did you mean 'Block'?"),
        (["model.compile=[{kernel:QueryNorm}]"], "model.compile[0]", "no module of this model is made by that slot"),
        (["model/compile=blocks", "model/layer_kernels=compiled_rmsnorm"], "model.layer_kernels.LayerNorm._compile_",
         "drop the inner: ~model.layer_kernels.LayerNorm._compile_"),
        (["model/compile=norms", "model.compile.0.options.backend=indctor"], "model.compile[0].options.backend",
         "did you mean 'inductor'?"),
    ],
    ids=["slot", "class", "nothing", "inside", "backend"],
)  # fmt: skip
def test_a_mistake_is_told_before_the_dataset_is_opened(
    overrides: list[str], where: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config", "validate", "system.input.dataset=/nope.zarr", *overrides]) == 2
    error = capsys.readouterr().err
    assert f"where:   {where}\n" in error
    assert said in error
    assert "/nope.zarr" not in error


def test_the_check_of_kernels_says_what_is_compiled(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    missing = "system.input.dataset=/nope.zarr"
    assert cli.main(["kernels", "check", missing, *NORMS]) == 0
    said = capsys.readouterr().out
    assert "compiled in a model of one layer: LayerNorm (9 modules, fullgraph" in said
