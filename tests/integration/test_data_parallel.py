"""Two processes train what one process trains, go on from each other's checkpoints, and end together."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from processes_of_runs import alive, assert_close, assert_close_scores
from runs import assert_same_run, command, curve, environment, rows, run

from small_stores import write_store

pytestmark = pytest.mark.timeout(900)

DEBUG = [
    "--config-name", "debug", "training.precision=64-true", "diagnostics.plot.enabled=false",
    "dataloader.limit_batches={training: 6, validation: null, test: 2}", "training.max_epochs=2",
]  # fmt: skip
ONE = ["dataloader.batch_size={training: 2, validation: 14, test: 14}"]
TWO = ["system.hardware.num_gpus_per_node=2", "dataloader.batch_size={training: 1, validation: 7, test: 7}"]
"""Global batches of 2 and 14: the validation's 120 windows leave 8 for the last, so that the second process pads it."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.slow),
        pytest.param(["training.accum_grad_batches=2"], marks=pytest.mark.slow),
        pytest.param(["task.rollout={start: 1, epoch_increment: 1, maximum: 2}"], marks=pytest.mark.slow),
    ],
    ids=["plain", "accumulated", "rollout"],
)
def test_two_processes_train_what_one_trains(cache: Path, tmp_path: Path, options: list[str]):
    run(tmp_path, cache, *DEBUG, *ONE, *options, "training.run_id=one")
    shutil.move(tmp_path / "outputs", tmp_path / "first")
    done = run(tmp_path, cache, *DEBUG, *TWO, *options, f"system.output.root={tmp_path}/second")
    (two,) = (tmp_path / "second").iterdir()  # the processes agree on a name
    assert_close(tmp_path / "first" / "one", two)
    assert_close_scores(tmp_path / "first" / "one", two)
    steps = [row["step"] for row in rows(two)]
    assert len(steps) == len(set(steps))
    assert done.stdout.count("Layer kernels") == 1
    assert done.stderr == ""
    assert alive(str(tmp_path)) == []


@pytest.mark.slow
def test_runs_of_two_processes_go_on(cache: Path, tmp_path: Path):
    """Two processes resume exactly what two wrote, and one process to rounding."""
    every = ["diagnostics.checkpoint.every_n_train_steps={save_frequency: 4, num_models_saved: -1}"]
    run(tmp_path, cache, *DEBUG, *TWO, *every, "training.run_id=whole")
    outputs = tmp_path / "outputs"
    (kept,) = (outputs / "whole" / "checkpoints").glob("*step_000004.ckpt")
    for name in ("two", "one"):
        shutil.copytree(outputs / "whole", outputs / name)
        shutil.copy(kept, outputs / name / "checkpoints" / "last.ckpt")
    done = run(tmp_path, cache, *DEBUG, *TWO, *every, "training.run_id=two")
    assert "step 4" in done.stdout
    assert_same_run(outputs / "whole", outputs / "two")
    run(tmp_path, cache, *DEBUG, *ONE, *every, "training.run_id=one")
    assert_close(outputs / "whole", outputs / "one")


@pytest.mark.slow
def test_two_runs_of_two_processes_one_after_the_other(cache: Path, tmp_path: Path):
    options = ["dataloader.limit_batches={training: 2, validation: 1, test: 1}", "training.max_epochs=1"]
    run(tmp_path, cache, *DEBUG, *TWO, *options, "--multirun", "training.seed=1,2")
    folders = sorted((tmp_path / "outputs").iterdir())
    assert len(folders) == 2
    assert curve(folders[0]) != curve(folders[1])
    assert all((folder / "metrics.json").is_file() for folder in folders)


def faulty(tmp_path: Path, sample: int) -> list[str]:
    """Options of a run whose windows stand in order, with a NaN in the last state of window `sample` alone."""
    path = write_store(tmp_path / "faulty.zarr", variables=("t", "forcing"), nan_at=[(sample + 1, "t", 3)])
    return ["--config-name", "own_data", f"system.input.dataset={path}", "data.forcing=[forcing]",
            "task.multistep_input=1", "graph.nodes.hidden.resolution=1", "model.num_channels=16",
            "diagnostics.plot.enabled=false", "system.hardware.num_gpus_per_node=2", "training.max_epochs=1",
            "dataloader.batch_size={training: 1, validation: 1, test: 1}", "training.run_id=faulty"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("date", [9, 10], ids=["one process", "another"])
def test_a_mistake_that_one_process_meets_ends_both(cache: Path, tmp_path: Path, date: int):
    began = time.monotonic()
    done = run(tmp_path, cache, *faulty(tmp_path, date), check=False)
    assert done.returncode == 2, done.stderr
    assert "variable 't' holds 3 NaNs at 2000-01" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 120
    assert alive(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_of_a_chosen_process_is_said_once(cache: Path, tmp_path: Path, rank: int):
    """The process of that rank stops at its third batch with a user's error."""
    (tmp_path / "fails.py").write_text(
        "import sys\n"
        "from etesian.errors import UserError\n"
        "from etesian.training.module import ForecastModule\n"
        "step = ForecastModule.training_step\n"
        "def training_step(self, batch, batch_idx):\n"
        f"    if self.trainer.global_rank == {rank} and batch_idx == 2:\n"
        "        raise UserError('what went wrong', where='this.key')\n"
        "    return step(self, batch, batch_idx)\n"
        "ForecastModule.training_step = training_step\n"
        "from etesian.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = command(*DEBUG, *TWO, f"system.output.root={tmp_path}/out")
    done = subprocess.run(
        [words[0], str(tmp_path / "fails.py"), *words[3:]], cwd=tmp_path, env=environment(cache),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    *told, who = done.stderr.splitlines()
    assert told == ["error: what went wrong", "  where:   this.key"]
    assert who.startswith(f"error: process {rank} of 2, on ")
    assert alive(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["main", "other"])
def test_a_process_that_dies_ends_the_run(cache: Path, tmp_path: Path, dies: str):
    options = [*DEBUG, *TWO, f"system.output.root={tmp_path}/out", "training.max_epochs=500"]
    with subprocess.Popen(
        command(*options), cwd=tmp_path, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as main:  # fmt: skip
        deadline = time.monotonic() + 120
        while not list((tmp_path / "out").glob("*/metrics.csv")) and time.monotonic() < deadline:
            time.sleep(0.1)
        (other,) = (child for child in psutil.Process(main.pid).children() if "train" in child.cmdline())
        os.kill(main.pid if dies == "main" else other.pid, 9)
        _, said = main.communicate(timeout=60)
    assert main.returncode == (-9 if dies == "main" else 128 + 9), said
    assert said.splitlines()[0].startswith(
        "error: process 0 of 2 is gone" if dies == "main" else "error: process 1 of 2,"
    )
    assert alive(str(tmp_path)) == []
