"""One process a run: a lock in the run folder that outlives no crash and holds across the nodes of a file system."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etesian.errors import UserError
from etesian.training.run_folder import RunFolder
from etesian.training.slurm_task import SlurmTask

NAME = "run.lock"
BEAT = 10.0  # seconds between two heartbeats
DEAD_AFTER = 60.0  # seconds without a heartbeat until a process of another machine counts as dead
_SETTLE = 0.3  # seconds until the last of several that take over one stale lock has written its own


class RunLock:
    """Holds a run folder for the first process of a run, as a context manager.

    The file ``run.lock`` tells host, process, start, Slurm job and a token; a thread renews its time of change. Who
    finds one decides whether its process lives: on the same machine by the process itself, elsewhere by the heartbeat,
    both times taken from the file system's clock. A later life of the same Slurm job takes over at once.

    Parameters
    ----------
    run : RunFolder
        The run.
    task : SlurmTask, optional
        What Slurm calls this process, if it started it.
    beat : float
        Seconds between two heartbeats.
    dead_after : float
        Seconds without one after which a process of another machine counts as dead.
    """

    def __init__(
        self, run: RunFolder, task: SlurmTask | None = None, *, beat: float = BEAT, dead_after: float = DEAD_AFTER
    ) -> None:
        self.run, self.task, self.beat, self.dead_after = run, task, beat, dead_after
        self.file = run.path / NAME
        self.token = secrets.token_hex(8)
        self.lost = False
        self._made: list[Path] = []
        self._end = threading.Event()

    def __enter__(self) -> RunLock:
        """Take the lock.

        Raises
        ------
        UserError
            If another process that lives holds it.
        """
        self._made = [folder for folder in (self.run.path, *self.run.path.parents) if not folder.exists()]
        self.run.create()
        try:
            with open(self.file, "x") as file:
                json.dump(self._content(), file)
        except FileExistsError:
            self._take_over()
        threading.Thread(target=self._keep, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back, and remove folders that were made for nothing."""
        self._end.set()
        if _read(self.file).get("token") == self.token:
            self.file.unlink(missing_ok=True)
        for folder in (self.run.checkpoints, *self._made):
            try:
                folder.rmdir()
            except OSError:
                break

    def check_held(self) -> None:
        """Check that the lock is still this process's.

        Raises
        ------
        UserError
            If another process has taken it over: this one was still for so long that it counted as dead.
        """
        if self.lost:
            raise UserError(
                f"run {self.run.run_id!r} was taken over by {_owner(_read(self.file))}: this process gave no sign of "
                f"life for more than {self.dead_after:.0f} s",
                where=str(self.file),
                mend="let the other go on; look at why this machine or its file system stood still",
            )

    def _content(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "job": None if self.task is None else self.task.job,
            "restarts": 0 if self.task is None else self.task.restarts,
            "token": self.token,
        }

    def _take_over(self) -> None:
        """Replace a stale lock and say so.

        Raises
        ------
        UserError
            If it is not stale, or another process took it over at the same time.
        """
        found = _read(self.file)
        reason = stale_because(found, self._silence(), self.task, self.dead_after)
        if reason is not None:
            own = self.file.with_name(f".{NAME}.{self.token}")
            own.write_text(json.dumps(self._content()))
            os.replace(own, self.file)
            time.sleep(_SETTLE)
            now = _read(self.file)
            if now.get("token") == self.token:
                print(f"Took over the lock of {_owner(found)}: {reason}", flush=True)
                return
            found = now
        raise UserError(
            f"run {self.run.run_id!r} is being trained by {_owner(found)}",
            where=str(self.file),
            allowed="one process a run; the lock of a process that is gone is taken over"
            + (f", on another machine {self.dead_after:.0f} s after its last sign of life" if found else ""),
            mend="wait for it, end it, or start another run: training.run_id=NAME",
        )

    def _silence(self) -> float:
        """Return the seconds since the last heartbeat, both ends by the clock of the file system."""
        probe = self.file.with_name(f".{NAME}.{self.token}")
        probe.touch()
        try:
            return probe.stat().st_mtime - self.file.stat().st_mtime
        except FileNotFoundError:  # given back in this moment
            return float("inf")
        finally:
            probe.unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._end.wait(self.beat):
            try:
                if _read(self.file).get("token") != self.token:
                    self.lost = not self._end.is_set()
                    return
                os.utime(self.file)
            except OSError:  # a file system that is away for a moment: the next beat tries again
                continue


def check_free(run: RunFolder) -> None:
    """Check, without taking it, that no process that can be told to live holds a run.

    Raises
    ------
    UserError
        If one does.
    """
    file = run.path / NAME
    found = _read(file)
    if found and stale_because(found, time.time() - file.stat().st_mtime) is None:
        raise UserError(
            f"run {run.run_id!r} is being trained by {_owner(found)}",
            where=str(file),
            mend="wait for it (--after JOBID), end it, or start another run: training.run_id=NAME",
        )


def stale_because(
    lock: dict[str, Any], silence: float, task: SlurmTask | None = None, dead_after: float = DEAD_AFTER
) -> str | None:
    """Say why the process of a lock is gone; None while it lives.

    Parameters
    ----------
    lock : dict
        What the lock holds; empty where it can't be read.
    silence : float
        Seconds since its last heartbeat.
    task : SlurmTask, optional
        What Slurm calls this process.
    dead_after : float
        Seconds of silence after which a process of another machine counts as dead.
    """
    if task is not None and lock.get("job") == task.job and lock["restarts"] < task.restarts:
        return f"job {task.job} was requeued since"
    if lock.get("machine") == _machine():
        if _start_of(lock["pid"]) == lock["started"] is not None:
            return None
        return f"process {lock['pid']} is gone"
    return f"no sign of life for {silence:.0f} s" if silence > dead_after else None


def _owner(lock: dict[str, Any]) -> str:
    if not lock:
        return "a process that its lock does not name"
    job = f", job {lock['job']}" if lock.get("job") else ""
    return f"process {lock['pid']} on {lock['host']}{job}, since {lock['since']}"


def _read(file: Path) -> dict[str, Any]:
    """Return what a lock holds; empty where it is gone or not whole."""
    try:
        content = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _machine() -> str:
    """Return what tells machines apart, and containers of one: processes of one name see each other."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in words that no later one of its number has; None if gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "unknown"
    return None if after_name[0] == "Z" else after_name[19]
