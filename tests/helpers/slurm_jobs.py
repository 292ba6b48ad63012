"""Jobs of a Slurm that runs on this machine: ``from slurm_jobs import Slurm``."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from doc_pages import blocks
from runs import command, losses

SHORT = ["--config-name", "debug", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false"]
TWO = ["system.hardware.num_nodes=2", "dataloader.batch_size={training: 1, validation: 2, test: 2}"]
"""A process on each of two nodes, with the batches of one process."""

SUBMITTED = ["system=slurm", "system.hardware.accelerator=cpu", "system.input.dataset=embedded:ncep-monthly-5deg"]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def until(what: str, holds: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def until_steps(folder: Path, steps: int) -> None:
    """Wait until a run has logged so many steps."""
    until(f"{steps} steps", lambda: (folder / "metrics.csv").exists() and len(losses(folder)) >= steps)


def until_said(log: Path, text: str) -> None:
    """Wait until a job has said something."""
    until(text, lambda: log.exists() and text in log.read_text())


class Slurm:
    """Jobs of the tiny ``debug`` experiment.

    Parameters
    ----------
    variables : mapping
        The environment in which Slurm's commands work; jobs have it too.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)

    def call(self, *words: str) -> str:
        """Run a command of Slurm and return what it prints."""
        return subprocess.run(words, env=self.variables, capture_output=True, text=True, check=True).stdout

    def sbatch(self, folder: Path, script: str) -> tuple[str, Path]:
        """Submit a script; return the job's number and its log."""
        log = folder / f"log-{time.monotonic_ns()}"
        file = log.with_suffix(".sh")
        file.write_text(script)
        job = self.call("sbatch", "--parsable", f"--chdir={folder}", f"--output={log}", str(file)).strip()
        return job, log

    def by_hand(self, folder: Path, *overrides: str) -> tuple[str, Path]:
        """Submit the script of docs/slurm.md, with a task on each of two nodes; return the job's number and its log."""
        (script,) = [block.text for block in blocks("text") if block.page == "docs/slurm.md"]
        run = shlex.join([*command(*SHORT, *TWO, *overrides)])
        for shown, here in (
            ("--ntasks-per-node=4\n", "--ntasks-per-node=1\n"),
            ("#SBATCH --gpus-per-node=4\n", ""),
            ("anemoi-training train --config-name my_experiment", run),
        ):
            assert shown in script
            script = script.replace(shown, here)
        return self.sbatch(folder, script)

    def try_to_submit(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``anemoi-training submit``."""
        words = [sys.executable, "-m", "etesian", "submit", *SHORT, *SUBMITTED, *arguments]
        return subprocess.run(words, cwd=folder, env=self.variables, capture_output=True, text=True, check=False)

    def submit(self, folder: Path, *arguments: str) -> tuple[str, Path]:
        """Submit with the command; return the job's number and its log."""
        done = self.try_to_submit(folder, *arguments)
        assert done.returncode == 0, done.stderr
        found = re.search(r"Job (\d+).*log: +(\S+)", done.stdout, re.DOTALL)
        assert found is not None
        return found[1], Path(found[2])

    def field(self, job: str, name: str) -> list[str]:
        """Return what ``scontrol show job`` says under a name, of each task of an array."""
        return re.findall(rf"\b{name}=(\S+)", self.call("scontrol", "show", "job", job))

    def wait(self, job: str, seconds: float = 240.0) -> str:
        """Wait for the end of a job; return its state, of an array that of all tasks, and its exit status."""
        until(f"job {job} ends", lambda: set(self.field(job, "JobState")) <= ENDED, seconds)
        (state,) = set(self.field(job, "JobState"))
        return f"{state} {self.field(job, 'ExitCode')[0]}"

    def seconds(self, job: str) -> float:
        """Return how long a job ran."""
        hours, minutes, seconds = self.field(job, "RunTime")[0].split(":")
        return int(hours) * 3600 + int(minutes) * 60 + int(seconds)
