"""What Slurm calls this process, and the one thing that is asked of Slurm while a run goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from etesian.errors import Problem, UserError
from etesian.schema.config import Config

_PATIENCE = 60  # seconds for scontrol


@dataclass(frozen=True)
class SlurmTask:
    """One task of a step that ``srun`` started.

    Attributes
    ----------
    job : str
        Number of the job; each task of an array has its own.
    name : str
        The job's number as Slurm shows it: ``12``, or ``12_3`` in an array.
    step : int
        Number of the step in the job.
    restarts : int
        How often the job was requeued.
    rank : int
        Number of this task, from 0.
    tasks : int
        Tasks of the step.
    nodes : int
        Nodes of the step.
    """

    job: str
    name: str
    step: int
    restarts: int
    rank: int
    tasks: int
    nodes: int

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> SlurmTask | None:
        """Return the task that the environment tells of; None where ``srun`` did not start this process.

        An interactive shell, whose job is named ``bash`` or ``interactive``, is none, as for Lightning.
        """
        step = environment.get("SLURM_STEP_ID", "")
        if not step.isdecimal() or environment.get("SLURM_JOB_NAME") in ("bash", "interactive"):
            return None
        job, array = environment["SLURM_JOB_ID"], environment.get("SLURM_ARRAY_JOB_ID")
        return cls(
            job=job,
            name=job if array is None else f"{array}_{environment['SLURM_ARRAY_TASK_ID']}",
            step=int(step),
            restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
            rank=int(environment.get("SLURM_PROCID", "0")),
            tasks=int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")),
            nodes=int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES", "1")),
        )

    @property
    def run_id(self) -> str:
        """A name that every task of the step arrives at, and its next life after a requeue too."""
        return f"slurm-{self.name}" + (f".{self.step}" if self.step else "")

    def check_size(self, config: Config) -> None:
        """Check that the step has as many nodes and tasks as the config asks for.

        Raises
        ------
        UserError
            If not.
        """
        hardware = config.system.hardware
        asked = hardware.num_nodes * hardware.num_gpus_per_node
        problems = []
        if self.nodes != hardware.num_nodes:
            problems.append(
                Problem(
                    f"srun started this run on {self.nodes} nodes, system.hardware.num_nodes={hardware.num_nodes}",
                    "system.hardware.num_nodes",
                    mend=f"srun --nodes={hardware.num_nodes}, or system.hardware.num_nodes={self.nodes}",
                )
            )
        if self.tasks != asked:
            problems.append(
                Problem(
                    f"srun started {self.tasks} tasks, and {hardware.num_nodes} x {hardware.num_gpus_per_node} "
                    "processes are asked for by system.hardware.num_nodes and num_gpus_per_node",
                    "system.hardware.num_gpus_per_node",
                    mend=f"srun --ntasks-per-node={hardware.num_gpus_per_node}, a task for each GPU",
                )
            )
        if problems:
            raise UserError.collect(problems)

    def requeue(self) -> None:
        """Put the job back into the queue, which ends this life of it.

        Raises
        ------
        UserError
            If Slurm refuses.
        """
        try:
            done = subprocess.run(
                ["scontrol", "requeue", self.job], capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
            refused = " ".join(done.stderr.split()) if done.returncode else None
        except (OSError, subprocess.TimeoutExpired) as cause:
            refused = str(cause)
        if refused is not None:
            raise UserError(
                f"job {self.name} can't be requeued: {refused}",
                where="system.slurm.requeue",
                mend="submit it again: the run goes on from its last checkpoint",
            )
