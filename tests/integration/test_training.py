"""Whole runs of the command on a tiny model: what they leave, how they go on, and that they repeat."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs import assert_same_run, command, environment, losses, train, weights
from runs import run as run_in_a_process

TINY = ["--config-name", "debug", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false"]


def run(folder: Path, *arguments: str) -> None:
    """Train in `folder`, in this process."""
    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(folder)
        assert train(*arguments) == 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="module")
def _cached(cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("ETESIAN_CACHE", str(cache))
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of ten steps."""
    folder = tmp_path_factory.mktemp("reference")
    run(folder, *TINY, "training.run_id=whole")
    return folder / "outputs" / "whole"


def test_a_run_leaves_what_it_promises(cache: Path, tmp_path: Path) -> None:
    done = run_in_a_process(tmp_path, cache, "--config-name", "debug", "training.run_id=all")
    left = tmp_path / "outputs" / "all"
    for name in ("config.yaml", "kernels.json", "environment.json", "metrics.csv", "metrics.json",
                 "checkpoints/last.ckpt", "checkpoints/best.ckpt"):  # fmt: skip
        assert (left / name).is_file(), name
    assert list((left / "plots").glob("*.png"))
    scores = json.loads((left / "metrics.json").read_text())
    assert "t_sig995" in json.dumps(scores)
    assert "persistence" in done.stdout.lower()
    assert not list(left.rglob("*.tmp"))
    checkpoint = torch.load(left / "checkpoints" / "last.ckpt", weights_only=False)
    assert checkpoint["etesian"]["kernels"]
    assert checkpoint["etesian"]["config"]["training"]["max_epochs"] == 2


def test_the_same_seed_gives_the_same_bits(reference: Path, tmp_path: Path) -> None:
    run(tmp_path, *TINY, "training.run_id=again")
    assert losses(tmp_path / "outputs" / "again") == losses(reference)
    assert len(losses(reference)) == 10


def test_another_seed_gives_another_curve(reference: Path, tmp_path: Path) -> None:
    run(tmp_path, *TINY, "training.run_id=other", "training.seed=4321")
    assert losses(tmp_path / "outputs" / "other") != losses(reference)


@pytest.mark.parametrize(
    ("every", "workers", "kind"),
    [
        (3, 0, "processes"),
        (5, 0, "processes"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((5, 2, "processes"), (3, 2, "processes"), (3, 2, "threads"))
        ),
    ],
    ids=lambda value: {3: "mid-epoch", 5: "last batch of an epoch"}.get(value),
)
def test_resume_after_a_stop_goes_on_exactly(
    reference: Path,
    cache: Path,
    tmp_path: Path,
    every: int,
    workers: int,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [*TINY, "training.run_id=stopped", f"dataloader.num_workers.training={workers}",
               f"dataloader.workers={kind}",
               f"diagnostics.checkpoint.every_n_train_steps.save_frequency={every}"]  # fmt: skip
    script = tmp_path / "stop.py"
    script.write_text(
        "import os, signal, sys\n"
        "import pytorch_lightning as pl\n"
        "advance = pl.callbacks.ModelCheckpoint.on_train_batch_end\n"
        "def stop(self, trainer, *args, **kwargs):\n"
        "    advance(self, trainer, *args, **kwargs)\n"
        f"    if trainer.global_step == {every + 1} and self is trainer.checkpoint_callbacks[-1]:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "pl.callbacks.ModelCheckpoint.on_train_batch_end = stop\n"
        "from etesian.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    killed = subprocess.run(
        [sys.executable, str(script), "train", *options], cwd=tmp_path, env=environment(cache), capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    run(tmp_path, *options)
    assert f"goes on at step {every}" in capsys.readouterr().out
    assert_same_run(reference, tmp_path / "outputs" / "stopped", ["train_loss"])


def test_kill_9_in_mid_epoch_then_resume(reference: Path, cache: Path, tmp_path: Path) -> None:
    options = [*TINY, "training.run_id=killed", "diagnostics.checkpoint.every_n_train_steps.save_frequency=1"]
    last = tmp_path / "outputs" / "killed" / "checkpoints" / "last.ckpt"
    process = subprocess.Popen(command(*options), cwd=tmp_path, env=environment(cache), start_new_session=True)
    deadline = time.monotonic() + 120
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert last.exists()
    run(tmp_path, *options)
    resumed, whole = losses(tmp_path / "outputs" / "killed"), losses(reference)
    # The row of a step is written right after its checkpoint: a kill in between loses that row, and no other.
    assert len(resumed) >= len(whole) - 1
    assert resumed == {step: whole[step] for step in resumed}
    for name, weight in weights(reference).items():
        assert torch.equal(weight, weights(last.parents[1])[name]), name


def test_a_finished_run_resumes_for_longer(tmp_path: Path) -> None:
    """With a fixed end of the schedule, two and then two more epochs equal four epochs."""
    common = [*TINY, "training.optimization.lr_scheduler={warmup_t: 2, t_initial: 20}"]
    run(tmp_path, *common, "training.run_id=straight", "training.max_epochs=4")
    run(tmp_path, *common, "training.run_id=longer")
    run(tmp_path, *common, "training.run_id=longer", "training.max_epochs=4")
    assert losses(tmp_path / "outputs" / "longer") == losses(tmp_path / "outputs" / "straight")


def test_a_resumed_run_refuses_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(*TINY, "training.run_id=one") == 0
    assert train(*TINY, "training.run_id=one", "model.num_channels=32") == 2
    said = capsys.readouterr().err
    assert "model.num_channels" in said
    assert "training.fork_run_id=one" in said


@pytest.mark.slow
def test_fork_starts_another_run_from_one(reference: Path, tmp_path: Path) -> None:
    run(tmp_path, *TINY, "training.run_id=base")
    run(tmp_path, *TINY, "training.run_id=forked", "training.fork_run_id=base", "training.max_epochs=3")
    assert sorted(losses(tmp_path / "outputs" / "forked")) == list(range(10, 15))
    run(tmp_path, *TINY, "training.run_id=weights", "training.fork_run_id=base",
        "training.load_weights_only=true")  # fmt: skip
    assert sorted(losses(tmp_path / "outputs" / "weights")) == list(range(10))
    assert losses(tmp_path / "outputs" / "weights") != losses(reference)


def test_an_unknown_run_to_fork_from_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(*TINY, "training.fork_run_id=nowhere") == 2
    assert "training.fork_run_id" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()
