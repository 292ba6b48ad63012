"""Runs under a real Slurm of two nodes on this machine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import assert_same_run, environment, losses, run

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SHORT = ["--config-name", "debug", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false"]
TWO = ["system.hardware.num_nodes=2", "dataloader.batch_size.training=1"]
SLURM = ["system=slurm", "system.hardware.accelerator=cpu", "system.input.dataset=embedded:ncep-monthly-5deg",
         "+system.slurm.environment.MASTER_ADDR=127.0.0.1"]  # fmt: skip
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which the commands of a Slurm work."""
    folder = tmp_path_factory.mktemp("slurm")
    variables = {**environment(tmp_path_factory.mktemp("cache")), "SLURM_DIR": str(folder), "SLURM_NODES": "2",
                 "SLURM_CONF": str(folder / "slurm.conf"), "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
    subprocess.run(["bash", str(HERE / "slurm_up.sh")], env=variables, check=True, timeout=300)
    yield variables
    subprocess.run(["bash", str(HERE / "slurm_down.sh")], env=variables, check=False, timeout=60)


def by_hand(cluster: dict[str, str], folder: Path, *arguments: str) -> str:
    """Submit a script of two nodes with a task each, written by hand, and return the job's number."""
    words = shlex.join([sys.executable, "-m", "etesian", "train", *SHORT, *TWO, *arguments])
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\nsrun --kill-on-bad-exit=1 {words}\n")
    command = ["sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/log", str(script)]
    return subprocess.run(command, env=cluster, capture_output=True, text=True, check=True).stdout.strip()


def submit(cluster: dict[str, str], folder: Path, *arguments: str) -> tuple[str, Path]:
    """Submit with the command and return the job's number and its log."""
    done = subprocess.run(
        [sys.executable, "-m", "etesian", "submit", *SHORT, *SLURM, *arguments], cwd=folder, env=cluster,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"Job (\d+).*log: +(\S+)", done.stdout, re.DOTALL)
    assert found is not None
    return found[1], Path(found[2])


def state(cluster: dict[str, str], job: str) -> str:
    said = subprocess.run(["scontrol", "show", "job", job], env=cluster, capture_output=True, text=True, check=True)
    return ",".join(re.findall(r"JobState=(\w+)", said.stdout))


def status(cluster: dict[str, str], job: str) -> str:
    said = subprocess.run(["scontrol", "show", "job", job], env=cluster, capture_output=True, text=True, check=True)
    return re.findall(r"\bExitCode=(\S+)", said.stdout)[0]


def wait(cluster: dict[str, str], job: str) -> str:
    """Wait for the end of a job and return its state."""
    deadline = time.monotonic() + 500
    now = state(cluster, job)
    while not set(now.split(",")) <= set(ENDED):
        assert time.monotonic() < deadline, now
        time.sleep(0.5)
        now = state(cluster, job)
    return now


def wait_for_steps(folder: Path, steps: int) -> None:
    deadline = time.monotonic() + 400
    while not ((folder / "metrics.csv").exists() and len(losses(folder)) > steps):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_nodes_train_and_a_second_job_on_their_run_is_refused(cluster: dict[str, str], tmp_path: Path) -> None:
    options = [*TWO, "training.run_id=two", "training.max_epochs=400"]
    job, log = submit(cluster, tmp_path, *options)
    wait_for_steps(tmp_path / "outputs" / "two", 2)
    second = run(tmp_path, Path(cluster["ETESIAN_CACHE"]), *SHORT, "training.run_id=two", check=False)
    assert second.returncode == 2
    assert f"job {job}" in second.stderr
    subprocess.run(["scancel", job], env=cluster, check=True)
    assert wait(cluster, job) == "CANCELLED"
    assert log.is_file()
    assert not (tmp_path / "outputs" / "two" / "run.lock").exists()


def test_a_kernel_that_is_wrong_ends_all(cluster: dict[str, str], tmp_path: Path) -> None:
    job = by_hand(cluster, tmp_path, "model.layer_kernels.LayerNorm._target_=torch.nn.RMSNrom")
    assert wait(cluster, job) == "FAILED"
    assert status(cluster, job) == "2:0"
    log = (tmp_path / "log").read_text()
    assert log.count("torch.nn.RMSNrom can't be imported") == 1
    assert "Traceback" not in log
    assert not (tmp_path / "outputs").exists()


def test_a_job_is_requeued_and_goes_on_exactly(cluster: dict[str, str], tmp_path: Path) -> None:
    options = ["training.max_epochs=20", "system.slurm.signal_seconds=60"]
    job, log = submit(cluster, tmp_path, *TWO, *options, "training.run_id=again")
    wait_for_steps(tmp_path / "outputs" / "again", 2)
    subprocess.run(["scancel", "--signal=USR1", job], env=cluster, check=True)
    assert wait(cluster, job) == "COMPLETED", log.read_text()
    assert f"requeueing job {job}" in log.read_text()
    assert "resumed from last.ckpt" in log.read_text()
    whole, _ = submit(cluster, tmp_path, *TWO, *options, "training.run_id=whole")
    assert wait(cluster, whole) == "COMPLETED"
    assert_same_run(tmp_path / "outputs" / "whole", tmp_path / "outputs" / "again")


def test_a_sweep_is_an_array(cluster: dict[str, str], tmp_path: Path) -> None:
    job, _ = submit(cluster, tmp_path, "--sweep", "training.seed=1,2", "training.run_id=seeds")
    assert set(wait(cluster, job).split(",")) == {"COMPLETED"}
    assert losses(tmp_path / "outputs" / "seeds-0") != losses(tmp_path / "outputs" / "seeds-1")
    assert os.listdir(tmp_path / "outputs" / "sweep-seeds").count("submit.sh") == 1
