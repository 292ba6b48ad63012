"""Runs under a real Slurm of two nodes on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import assert_same_run, command, curve, environment, losses, run
from slurm_jobs import SHORT, SUBMITTED, TWO, Slurm, until, until_said, until_steps

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes, of two processors each; neither has a name that others could find it by."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # munge wants its socket where everyone may look
    variables = {**environment(tmp_path_factory.mktemp("cache")), "SLURM_DIR": str(folder), "SLURM_NODES": "2",
                 "SLURM_PORT": str(20000 + os.getpid() % 20000), "SLURM_CONF": str(folder / "slurm.conf"),
                 "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
    try:
        subprocess.run(["bash", str(HERE / "slurm_up.sh")], env=variables, check=True, timeout=300)
        yield Slurm(variables)
    finally:
        subprocess.run(["bash", str(HERE / "slurm_down.sh")], env=variables, check=True, timeout=60)
        shutil.rmtree(folder)


def test_two_nodes_train_what_one_process_trains(slurm: Slurm, tmp_path: Path) -> None:
    asked = ["+system.slurm.options.exclusive=user", "system.slurm.cpus_per_task=1",
             "+system.slurm.environment.GREETING='good day'", "system.slurm.setup=['echo $GREETING, all']"]  # fmt: skip
    job, log = slurm.submit(tmp_path, *TWO, *asked, "training.run_id=two", "training.precision=64-true")
    assert slurm.field(job, "OverSubscribe") == ["USER"]
    assert slurm.field(job, "CPUs/Task") == ["1"]
    run(tmp_path, Path(slurm.variables["ETESIAN_CACHE"]), *SHORT, "training.run_id=one", "training.precision=64-true")
    assert slurm.wait(job) == "COMPLETED 0:0", log.read_text()
    one, two = tmp_path / "outputs" / "one", tmp_path / "outputs" / "two"
    assert len(curve(two)) == 10
    for name in ("train_loss", "val_loss"):
        assert curve(two, name) == pytest.approx(curve(one, name), rel=1e-9)
    assert (two / "checkpoints" / "last.ckpt").is_file()
    assert not (two / "run.lock").exists()
    assert log.parent == two
    assert log.read_text().count("good day, all\n") == 1
    assert log.read_text().count("Layer kernels") == 1


def test_a_run_has_one_job_at_a_time_and_another_goes_on_after_it(slurm: Slurm, tmp_path: Path) -> None:
    options = ["training.run_id=one", "training.max_epochs=4000"]
    folder = tmp_path / "outputs" / "one"
    first, log = slurm.submit(tmp_path, *TWO, *options)
    until_steps(folder, 2)
    second, said = slurm.by_hand(tmp_path, *options)
    refused = slurm.try_to_submit(tmp_path, *TWO, *options)
    assert refused.returncode == 2
    assert re.match(rf"error: run 'one' is being trained by process \d+ on \S+, job {first}, ", refused.stderr)
    after, later = slurm.submit(tmp_path, *TWO, *options, "--after", first)
    assert slurm.field(after, "Reason") == ["Dependency"]
    assert slurm.wait(second) == "FAILED 2:0", said.read_text()
    assert said.read_text().count(f", job {first}, ") == 1
    slurm.call("scancel", first)
    assert slurm.wait(first).startswith("CANCELLED")
    assert "run one stopped by SIGTERM" in log.read_text()
    until_said(later, "resumed from last.ckpt, goes on at step")
    began = max(losses(folder))
    until_steps(folder, began + 3)
    assert sorted(losses(folder)) == list(range(len(losses(folder))))
    slurm.call("scancel", after)
    assert slurm.wait(after).startswith("CANCELLED")
    assert not (folder / "run.lock").exists()


def test_a_kernel_that_is_wrong_ends_all_within_a_minute(slurm: Slurm, tmp_path: Path) -> None:
    job, log = slurm.by_hand(tmp_path, "model.layer_kernels.LayerNorm._target_=torch.nn.RMSNrom")
    assert slurm.wait(job) == "FAILED 2:0"
    assert log.read_text().count("torch.nn.RMSNrom can't be imported") == 1
    assert "Traceback" not in log.read_text()
    assert slurm.seconds(job) < 60
    assert not (tmp_path / "outputs").exists()


def test_a_kernel_that_fails_on_one_node_ends_all(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "node_kernels.py").write_text(
        "import os\n"
        "import torch\n"
        "class Norm(torch.nn.LayerNorm):\n"
        "    def forward(self, x):\n"
        "        if os.environ['SLURM_PROCID'] == '1':\n"
        "            raise RuntimeError('not on this node')\n"
        "        return super().forward(x)\n"
    )
    job, log = slurm.by_hand(tmp_path, "model.layer_kernels.LayerNorm._target_=node_kernels.Norm")
    assert slurm.wait(job) == "FAILED 2:0"
    assert log.read_text().count("its forward pass fails: RuntimeError: not on this node") == 1
    assert f"process 1 of 2, on {os.uname().nodename}, ended the job" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_what_the_job_has_and_the_config_asks_for_differ(slurm: Slurm, tmp_path: Path) -> None:
    words = shlex.join(command(*SHORT, "training.run_id=one"))
    job, log = slurm.sbatch(
        tmp_path,
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1\n"
        f"srun --kill-on-bad-exit=1 {words}\necho status $?\n{words}\necho status $?\n",
    )
    assert slurm.wait(job) == "COMPLETED 0:0"
    with_srun, without, rest = log.read_text().split("status 2\n")
    assert with_srun.count("srun started this run on 2 nodes, system.hardware.num_nodes=1") == 1
    assert "srun" in without
    assert "Traceback" not in with_srun + without
    assert rest == ""
    assert not (tmp_path / "outputs").exists()


def test_a_signalled_job_is_requeued_and_goes_on_exactly(slurm: Slurm, tmp_path: Path) -> None:
    """A job of a script written by hand, whose run has the job's name; and one that nothing interrupts."""
    job, log = slurm.by_hand(tmp_path, *SUBMITTED, "training.max_epochs=20")
    outputs = tmp_path / "outputs"
    until_steps(outputs / f"slurm-{job}", 2)
    slurm.call("scancel", "--signal=USR1", job)
    whole, _ = slurm.submit(tmp_path, *TWO, "training.max_epochs=20", "training.run_id=whole")
    assert slurm.wait(job) == "COMPLETED 0:0", log.read_text()
    said = log.read_text()
    kept = f"outputs/slurm-{job}/checkpoints/last.ckpt is whole"
    assert said.count(f"run slurm-{job} stopped by SIGUSR1, {kept}; requeueing job {job}") == 1
    assert said.count("resumed from last.ckpt, goes on at step") == 1
    assert slurm.field(job, "Restarts") == ["1"]
    assert slurm.wait(whole) == "COMPLETED 0:0"
    assert_same_run(outputs / "whole", outputs / f"slurm-{job}")


def test_a_job_whose_time_is_nearly_over_is_requeued(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm looks at its limits every 30 s, and so signals up to 30 s before the time that was asked for."""
    time = ["system.slurm.time=00:01:00", "system.slurm.signal_seconds=10"]
    job, log = slurm.submit(tmp_path, *TWO, *time, "training.run_id=long", "training.max_epochs=4000")
    until_said(log, f"requeueing job {job}")
    until_said(log, "resumed from last.ckpt, goes on at step")
    until("a second life", lambda: slurm.field(job, "JobState") == ["RUNNING"])
    slurm.call("scancel", job)
    assert slurm.wait(job).startswith("CANCELLED")
    assert slurm.field(job, "Restarts") == ["1"]


def test_a_job_that_had_the_time_of_its_run_is_requeued(slurm: Slurm, tmp_path: Path) -> None:
    job, log = slurm.by_hand(tmp_path, *SUBMITTED, "training.max_time=00:00:05", "training.max_epochs=4000")
    until_said(log, f"run slurm-{job} stopped by training.max_time, ")
    until("a second life", lambda: slurm.field(job, "Restarts") == ["1"])
    assert f"requeueing job {job}" in log.read_text()
    slurm.call("scancel", job)
    assert slurm.wait(job).startswith("CANCELLED")


def test_a_sweep_is_an_array(slurm: Slurm, tmp_path: Path) -> None:
    job, _ = slurm.submit(tmp_path, "--sweep", "training.seed=1,2", "training.run_id=seeds")
    assert slurm.wait(job) == "COMPLETED 0:0"
    outputs = tmp_path / "outputs"
    assert losses(outputs / "seeds-0") != losses(outputs / "seeds-1")
    assert sorted(file.name for file in (outputs / "sweep-seeds").iterdir()) == [
        f"slurm-{job}_0.out", f"slurm-{job}_1.out", "submit.sh"
    ]  # fmt: skip


def test_what_slurm_refuses(slurm: Slurm, tmp_path: Path) -> None:
    done = slurm.try_to_submit(tmp_path, "system.slurm.partition=nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Slurm refuses the job: ")
    assert "invalid partition specified: nowhere" in done.stderr
