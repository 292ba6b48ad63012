"""One process a run, and whose lock is stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etesian.errors import UserError
from etesian.training.run_folder import RunFolder
from etesian.training.run_lock import NAME, RunLock, stale_because
from etesian.training.slurm_task import SlurmTask

TASK = SlurmTask(job="7", name="7", step=0, restarts=0, rank=0, tasks=1, nodes=1)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "outputs", "first")


def content(run: RunFolder) -> dict:
    return json.loads((run.path / NAME).read_text())


def rewrite(run: RunFolder, **changes: object) -> None:
    file = run.path / NAME
    file.write_text(json.dumps({**content(run), "token": "another", **changes}))


def test_it_holds_while_the_process_lives_and_leaves_nothing(run: RunFolder) -> None:
    with RunLock(run):
        said = content(run)
        assert said["pid"] == os.getpid()
        with pytest.raises(UserError) as refused, RunLock(run):
            pass
        assert f"run 'first' is being trained by process {os.getpid()} on {said['host']}" in str(refused.value)
        assert "training.run_id=NAME" in str(refused.value)
        assert content(run) == said
        assert sorted(file.name for file in run.path.iterdir()) == ["checkpoints", NAME]
    assert not run.root.exists()


def test_what_a_run_wrote_stays(run: RunFolder) -> None:
    with RunLock(run):
        (run.path / "config.yaml").write_text("{}")
    assert [file.name for file in run.path.iterdir()] == ["config.yaml"]


def test_the_lock_of_a_process_that_died(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from etesian.training.run_folder import RunFolder\n"
        "from etesian.training.run_lock import RunLock\n"
        "RunLock(RunFolder(Path(sys.argv[1]), 'first')).__enter__(); os._exit(9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script, str(run.root)], env=environment)
    assert process.wait() == 9
    with RunLock(run):
        assert content(run)["pid"] == os.getpid()
    said = capsys.readouterr().out
    assert f"Took over the lock of process {process.pid} on" in said
    assert f"process {process.pid} is gone" in said


def test_a_number_that_another_process_has_now(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(run):
        rewrite(run, started="1")
        with RunLock(run):
            pass
    assert "is gone" in capsys.readouterr().out


def test_a_process_of_another_machine_lives_as_long_as_its_heart_beats(run: RunFolder) -> None:
    with RunLock(run, beat=60):
        rewrite(run, machine="elsewhere", host="n2")
        with pytest.raises(UserError, match="on n2") as refused, RunLock(run, dead_after=30):
            pass
        assert "30 s after its last sign of life" in str(refused.value)
        past = time.time() - 31
        os.utime(run.path / NAME, (past, past))
        with RunLock(run, dead_after=30):
            assert content(run)["host"] != "n2"


def test_the_heart_beats(run: RunFolder) -> None:
    with RunLock(run, beat=0.02):
        file, past = run.path / NAME, time.time() - 100
        os.utime(file, (past, past))
        deadline = time.monotonic() + 10
        while file.stat().st_mtime < past + 50 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert file.stat().st_mtime > past + 50


def test_a_lock_that_was_taken_over_ends_its_first_holder(run: RunFolder) -> None:
    with RunLock(run, beat=0.02) as lock:
        lock.check_held()
        rewrite(run, host="n2")
        deadline = time.monotonic() + 10
        while not lock.lost and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(UserError, match=r"was taken over by process \d+ on n2"):
            lock.check_held()
    assert content(run)["host"] == "n2"  # not given back by one that no longer holds it


@pytest.mark.parametrize("text", ["", "[1]", '{"host":'])
def test_a_lock_that_is_not_whole(run: RunFolder, text: str) -> None:
    run.create()
    (run.path / NAME).write_text(text)
    with pytest.raises(UserError, match="a process that its lock does not name"), RunLock(run):
        pass
    past = time.time() - 61
    os.utime(run.path / NAME, (past, past))
    with RunLock(run):
        assert content(run)["pid"] == os.getpid()


def test_a_requeued_job_takes_over_its_own_lock_at_once() -> None:
    lock = {"job": "7", "restarts": 0, "machine": "elsewhere", "pid": 1, "started": "1"}
    later = SlurmTask(job="7", name="7", step=0, restarts=1, rank=0, tasks=1, nodes=1)
    other = SlurmTask(job="8", name="8", step=0, restarts=1, rank=0, tasks=1, nodes=1)
    assert stale_because(lock, 0.0, later) == "job 7 was requeued since"
    assert stale_because(lock, 0.0, TASK) is None
    assert stale_because(lock, 0.0, other) is None
