"""The same seed and global batch: one process, two data-parallel, two that divide the model, and back."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from processes_of_runs import alive, assert_close, assert_close_scores
from runs import SMALL, rows, run, weights

from etesian import cli
from small_stores import write_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FIRST = 9
"""Step of the checkpoint that others go on from, in the first of two epochs of eleven steps."""

RUN = [
    *SMALL, "training.precision=64-true", "task.rollout={start: 2, epoch_increment: 0, maximum: 2}",
    "task.validation_rollout=2", "+data.processors.imputer.mean=[u]", "training.gradient_clip={algorithm: norm, "
    "val: 0.01}", "diagnostics.checkpoint.every_n_train_steps={save_frequency: 9, num_models_saved: -1}",
]  # fmt: skip


def processes(count: int) -> list[str]:
    """Options of a global batch of four samples: of the 45 for training one is left, of the 3 for validation none."""
    size = 4 // count
    batch = f"dataloader.batch_size={{training: {size}, validation: {size}, test: {size}}}"
    return [batch, f"system.hardware.num_gpus_per_node={count}"]


SHARDED = ["training.strategy.kind=fsdp"]
WAYS = {
    "one": processes(1),
    "ddp": processes(2),
    "fsdp": [*processes(2), *SHARDED, "diagnostics.plot.enabled=true"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each way."""
    folder = tmp_path_factory.mktemp("topology")
    gone = [(date, "u", 5) for date in (3, 17, 31, 50)]  # in all splits
    write_store(folder / "weather.zarr", dates=60, nan_at=gone)
    for name, options in WAYS.items():
        go(folder, name, *options)
    return folder


def go(folder: Path, name: str, *options: str) -> str:
    source = f"system.input.dataset={folder / 'weather.zarr'}"
    done = run(folder, folder / "cache", *RUN, source, f"training.run_id={name}", *options)
    assert done.stderr == ""
    assert alive(str(folder)) == []
    return done.stdout


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_losses_and_scores_are_those_of_one_process(folder: Path, name: str) -> None:
    one, other = folder / "outputs" / "one", folder / "outputs" / name
    assert [int(row["step"]) for row in rows(one) if row["train_loss"]] == list(range(22))
    assert_close(one, other)
    assert_close_scores(one, other)


def test_the_checkpoint_of_a_divided_model_is_that_of_one_process(folder: Path) -> None:
    one, divided = (folder / "outputs" / name for name in ("one", "fsdp"))
    after = weights(divided)
    for name, weight in weights(one).items():
        assert after[name].shape == weight.shape
        torch.testing.assert_close(after[name], weight, rtol=1e-9, atol=1e-12)
    kept = [torch.load(path / "checkpoints" / "last.ckpt", weights_only=False) for path in (one, divided)]
    ours, theirs = ([*state["optimizer_states"][0]["state"].values()] for state in kept)
    assert [list(entry) for entry in ours] == [list(entry) for entry in theirs]
    assert all(entry["exp_avg"].shape == other["exp_avg"].shape for entry, other in zip(ours, theirs, strict=True))
    assert {path.name for path in (divided / "checkpoints").iterdir()} == {
        path.name for path in (one / "checkpoints").iterdir()
    }


@pytest.mark.parametrize(
    ("before", "options"),
    [("fsdp", processes(1)), ("fsdp", [*processes(4), *SHARDED]), ("one", [*processes(2), *SHARDED])],
    ids=["two to one", "two to four", "one to two"],
)
def test_a_run_goes_on_with_another_number_of_processes(folder: Path, before: str, options: list[str]) -> None:
    outputs, name = folder / "outputs", f"{before}-on-{options[1][-1]}"
    (kept,) = (outputs / before / "checkpoints").glob(f"*step_{FIRST:06d}.ckpt")
    shutil.copytree(outputs / before, outputs / name)
    shutil.copy(kept, outputs / name / "checkpoints" / "last.ckpt")
    assert f"goes on at step {FIRST}" in go(folder, name, *options)
    assert_close(outputs / "one", outputs / name)
    assert_close_scores(outputs / "one", outputs / name)


def test_more_processes_than_samples_stop_at_the_door(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    source, many = f"system.input.dataset={folder / 'weather.zarr'}", "system.hardware.num_gpus_per_node=64"
    assert cli.main(["config", "validate", *RUN, source, *SHARDED, processes(1)[0], many]) == 2
    assert "45 samples do not fill one batch of 4 samples x 64 processes" in capsys.readouterr().err


def test_other_commands_take_the_checkpoint_of_a_divided_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scores are those of the end of the run, which every process had a part in."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ETESIAN_CACHE", str(folder / "cache"))
    run_folder = Path("outputs", "fsdp")
    last = str(run_folder / "checkpoints" / "last.ckpt")
    assert {path.name for path in (run_folder / "plots").iterdir()} >= {"loss.png", "rmse.png", "map_t_6h.png"}
    assert cli.main(["checkpoint", "describe", last, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 22
    assert cli.main(["checkpoint", "export", last, "-o", "inference.ckpt"]) == 0
    assert cli.main(["evaluate", "fsdp"]) == 0
    told = json.loads((run_folder / "metrics.json").read_text())["variables"]["t"]["lead_times"]["6 h"]["model"]
    with open(run_folder / "evaluation" / "scores.csv", newline="") as file:
        found = {(row["variable"], row["lead_time"], row["source"]): row for row in csv.DictReader(file)}
    assert float(found["t", "6 h", "model"]["rmse"]) == pytest.approx(told["rmse"], rel=1e-6)
