"""What Slurm calls a process, whether the job fits the config, and how it is put back into the queue."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.schema.config import Config
from etesian.training import slurm_task
from etesian.training.slurm_task import SlurmTask

STARTED = {
    "SLURM_JOB_ID": "41", "SLURM_JOB_NAME": "first", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_NNODES": "4",
}  # fmt: skip
"""Of a step that is half its job."""


def task(**changes: Any) -> SlurmTask:
    return SlurmTask(
        **{"job": "41", "name": "41", "step": 0, "restarts": 0, "rank": 3, "tasks": 8, "nodes": 2} | changes
    )


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in STARTED.items() if key != name}


def test_a_task_of_a_step() -> None:
    assert SlurmTask.read(STARTED) == task()


def test_older_slurms_tell_of_the_job_only() -> None:
    found = SlurmTask.read({key: value for key, value in STARTED.items() if not key.startswith("SLURM_STEP_NUM")})
    assert found == task(tasks=16, nodes=4)


def test_a_task_of_an_array_that_was_requeued() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "7", "SLURM_RESTART_COUNT": "2"}
    assert SlurmTask.read(STARTED | array) == task(name="40_7", restarts=2)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        without("SLURM_STEP_ID"),
        STARTED | {"SLURM_STEP_ID": "batch"},
        STARTED | {"SLURM_JOB_NAME": "bash"},
        STARTED | {"SLURM_JOB_NAME": "interactive"},
    ],
    ids=["no Slurm", "a batch script", "its step", "a shell", "an interactive job"],
)
def test_what_srun_did_not_start_is_no_task(environment: dict[str, str]) -> None:
    assert SlurmTask.read(environment) is None


@pytest.mark.parametrize(
    ("changes", "run_id"),
    [
        ({}, "slurm-41"),
        ({"rank": 0, "restarts": 3}, "slurm-41"),
        ({"name": "40_7"}, "slurm-40_7"),
        ({"step": 2}, "slurm-41.2"),
    ],
    ids=["a task", "a later life", "of an array", "of another step"],
)
def test_a_run_is_named_by_its_job(changes: dict[str, Any], run_id: str) -> None:
    assert task(**changes).run_id == run_id


@pytest.fixture(scope="module")
def config() -> Config:
    """Two nodes with four processes each."""
    return check_tree(
        compose("debug", None, ["system.hardware.num_nodes=2", "system.hardware.num_gpus_per_node=4", "system=slurm",
                                "system.input.dataset=embedded:ncep-monthly-5deg"])
    )  # fmt: skip


def test_a_job_that_fits_the_config(config: Config) -> None:
    task().check_size(config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"nodes": 1},
            {"system.hardware.num_nodes": "srun --nodes=2, or system.hardware.num_nodes=1"},
        ),
        (
            {"tasks": 2},
            {"system.hardware.num_gpus_per_node": "srun --ntasks-per-node=4, a task for each GPU"},
        ),
        (
            {"nodes": 4, "tasks": 16},
            {
                "system.hardware.num_nodes": "srun --nodes=2, or system.hardware.num_nodes=4",
                "system.hardware.num_gpus_per_node": "srun --ntasks-per-node=4, a task for each GPU",
            },
        ),
    ],
    ids=["too few nodes", "too few tasks", "too many of both"],
)
def test_a_job_that_does_not(config: Config, changes: dict[str, Any], said: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        task(**changes).check_size(config)
    assert {problem.where: problem.mend for problem in caught.value.problems} == said


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name, which is still to be written."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "scontrol"
    program.touch()
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_a_job_is_requeued_by_its_own_number(scontrol: Path, tmp_path: Path) -> None:
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    task(name="40_7").requeue()
    assert (tmp_path / "said").read_text() == "requeue 41\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Requested operation is presently disabled' >&2; exit 1", "Requested operation is presently disabled"),
        ("exec sleep 5", "timed out after 0.2 seconds"),
    ],
    ids=["refused", "no answer"],
)
def test_slurm_does_not_requeue(scontrol: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setattr(slurm_task, "_PATIENCE", 0.2)
    with pytest.raises(UserError, match=f"job 41 can't be requeued: .*{said}") as caught:
        task().requeue()
    assert caught.value.problems[0].where == "system.slurm.requeue"


def test_without_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"job 41 can't be requeued: .*No such file or directory: 'scontrol'"):
        task().requeue()
