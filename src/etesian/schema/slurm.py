"""Section ``system.slurm``: the job that ``anemoi-training submit`` asks Slurm for."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from etesian.schema.base import Section

TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")

OWN_OPTIONS = {
    "nodes": "system.hardware.num_nodes", "ntasks": "system.hardware.num_nodes and num_gpus_per_node",
    "ntasks-per-node": "system.hardware.num_gpus_per_node", "gpus": "system.hardware.num_gpus_per_node",
    "gpus-per-node": "system.hardware.num_gpus_per_node", "time": "system.slurm.time",
    "partition": "system.slurm.partition", "account": "system.slurm.account", "qos": "system.slurm.qos",
    "cpus-per-task": "system.slurm.cpus_per_task", "mem": "system.slurm.memory",
    "requeue": "system.slurm.requeue", "no-requeue": "system.slurm.requeue", "signal": "system.slurm.signal_seconds",
    "array": "--sweep", "dependency": "--after", "job-name": "training.run_id", "chdir": "the current folder",
    "output": "system.output.root", "error": "system.output.root", "open-mode": "system.slurm.requeue",
    "gres": "system.slurm.gpu_option", "export": "system.slurm.environment", "wrap": "the command itself",
}  # fmt: skip
"""Options of sbatch that have a key, or an option of ``submit``, of their own."""


class SlurmSettings(Section):
    """The Slurm job. Nodes and GPUs are ``system.hardware``'s, so that job and run can't differ."""

    time: str
    """Time limit, ``HH:MM:SS`` or ``D-HH:MM:SS``."""
    partition: str | None = None
    """Partition; null leaves it to the cluster."""
    account: str | None = None
    """Account that is charged; null leaves it to the cluster."""
    qos: str | None = None
    """Quality of service; null leaves it to the cluster."""
    cpus_per_task: int | None = Field(default=None, ge=1)
    """Processor cores of each process; null leaves it to the cluster."""
    memory: str | None = None
    """Memory of each node, such as ``120G``; null leaves it to the cluster."""
    gpu_option: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """Option of sbatch that asks for GPUs; some clusters know ``--gres=gpu:N`` only."""
    modules: list[str] = []
    """Environment modules that are loaded, after ``module purge``."""
    container: str | None = None
    """Image in which the command runs, with ``apptainer exec``; null runs it as it is."""
    container_options: list[str] = []
    """Further options of ``apptainer exec``, such as ``--bind=/data``."""
    environment: dict[str, str] = {}
    """Environment variables of the run."""
    setup: list[str] = []
    """Lines of shell that run on the first node before the run starts."""
    options: dict[str, str | int] = {}
    """Further options of sbatch by their long names, without dashes."""
    requeue: bool = True
    """Put the job back into the queue when its time is nearly over, so that the run goes on."""
    signal_seconds: int = Field(default=180, ge=1, le=65535)
    """Seconds before the time limit at which the run is asked to write a checkpoint and stop."""

    @field_validator("time")
    @classmethod
    def _is_a_time(cls, time: str) -> str:
        if not seconds_of(time):
            raise ValueError(f"system.slurm.time={time!r} is no time: HH:MM:SS or D-HH:MM:SS, more than nothing")
        return time

    @field_validator("modules", "container", "container_options", "environment", "setup")
    @classmethod
    def _are_lines(cls, value: Any) -> Any:
        texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value or ""]
        if broken := [text for text in texts if "\n" in text or "\r" in text]:
            raise ValueError(f"{broken[0]!r} under system.slurm has a line break: write a list of lines")
        return value

    @field_validator("partition", "account", "qos", "memory")
    @classmethod
    def _is_a_word(cls, word: str | None) -> str | None:
        if word is not None and not re.fullmatch(r"[\w.,:@+-]+", word):
            raise ValueError(f"{word!r} under system.slurm is no name that sbatch takes: one word, no spaces or quotes")
        return word

    @field_validator("environment")
    @classmethod
    def _are_variables(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise ValueError(f"system.slurm.environment.{name}: {name!r} is no name of an environment variable")
        return variables

    @field_validator("options")
    @classmethod
    def _have_no_key(cls, options: dict[str, str | int]) -> dict[str, str | int]:
        for name, value in options.items():
            if name in OWN_OPTIONS:
                raise ValueError(f"system.slurm.options.{name}: --{name} is set by {OWN_OPTIONS[name]}")
            if not re.fullmatch(r"[a-z][a-z0-9-]+", name):
                raise ValueError(
                    f"system.slurm.options.{name}: {name!r} is no option of sbatch by its long name, without dashes"
                )
            if re.search(r"\s", str(value)):
                raise ValueError(f"system.slurm.options.{name}={value!r} holds blanks, which sbatch would cut it at")
        return options


def seconds_of(time: str) -> int:
    """Return the seconds of ``HH:MM:SS`` or ``D-HH:MM:SS``; 0 for what is no time."""
    found = TIME.fullmatch(time)
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
