"""The text of a batch script for Slurm."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etesian.errors import shell_word

if TYPE_CHECKING:
    from etesian.schema.slurm import SlurmSettings
    from etesian.schema.system import HardwareSettings


@dataclass(frozen=True)
class Job:
    """What a script runs.

    Attributes
    ----------
    name : str
        Of the job.
    folder : Path
        Where it runs.
    log : Path
        Its output, with Slurm's ``%j``, or ``%A`` and ``%a`` in an array.
    command : list of str
        Command line without overrides.
    overrides : list of list of str
        Of each run; one where it is no array.
    is_array : bool
        Whether it is a job array.
    after : str, optional
        A job that has to end first.
    """

    name: str
    folder: Path
    log: Path
    command: list[str]
    overrides: list[list[str]]
    is_array: bool = False
    after: str | None = None


def batch_script(hardware: HardwareSettings, slurm: SlurmSettings, job: Job) -> str:
    """Return the script of a job.

    Parameters
    ----------
    hardware : HardwareSettings
        Nodes and processes.
    slurm : SlurmSettings
        What is asked of Slurm.
    job : Job
        What runs.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in _options(hardware, slurm, job)), "set -euo pipefail"]
    if slurm.modules:
        lines += ["", "module purge", *(f"module load {shell_word(name)}" for name in slurm.modules)]
    if slurm.environment:
        lines += ["", *(f"export {name}={shlex.quote(value)}" for name, value in slurm.environment.items())]
    if slurm.setup:
        lines += ["", *slurm.setup]
    lines += ["", *_command(hardware, slurm, job)]
    return "\n".join(lines) + "\n"


def _options(hardware: HardwareSettings, slurm: SlurmSettings, job: Job) -> Iterator[str]:
    yield f"job-name={job.name}"
    yield f"nodes={hardware.num_nodes}"
    yield f"ntasks-per-node={hardware.num_gpus_per_node}"
    if hardware.accelerator != "cpu":
        amount = f"gpu:{hardware.num_gpus_per_node}" if slurm.gpu_option == "gres" else f"{hardware.num_gpus_per_node}"
        yield f"{slurm.gpu_option}={amount}"
    named = {
        "cpus-per-task": slurm.cpus_per_task, "mem": slurm.memory, "time": slurm.time, "partition": slurm.partition,
        "account": slurm.account, "qos": slurm.qos,
    }  # fmt: skip
    yield from (f"{name}={value}" for name, value in {**named, **slurm.options}.items() if value is not None)
    if job.is_array:
        yield f"array=0-{len(job.overrides) - 1}"
    yield f"chdir={shell_word(str(job.folder))}"
    yield f"output={shell_word(str(job.log))}"
    yield "open-mode=append"
    yield f"signal=USR1@{slurm.signal_seconds}"
    yield "requeue" if slurm.requeue else "no-requeue"


def _command(hardware: HardwareSettings, slurm: SlurmSettings, job: Job) -> list[str]:
    """Return the lines that start the run: srun ends all processes when one fails, and hands them the signals."""
    words = ["exec", "srun", "--kill-on-bad-exit=1"]
    if slurm.cpus_per_task is not None:
        words.append(f"--cpus-per-task={slurm.cpus_per_task}")
    if slurm.container is not None:
        words += ["apptainer", "exec", *(["--nv"] if hardware.accelerator == "cuda" else []), *slurm.container_options]
        words.append(slurm.container)
    words += job.command
    start = " ".join(shell_word(word) for word in words)
    if not job.is_array:
        return [" \\\n  ".join([start, *(shell_word(word) for word in job.overrides[0])])]
    cases = [
        f"  {number}) overrides=({' '.join(shell_word(word) for word in overrides)}) ;;"
        for number, overrides in enumerate(job.overrides)
    ]
    return ['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac", f'{start} "${{overrides[@]}}"']
