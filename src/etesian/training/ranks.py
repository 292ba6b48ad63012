"""The processes of a run that Slurm started: they pass the door together, and the first mistake ends all of them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store, TCPStore

from etesian.errors import EXIT_CODE, Problem, UserError
from etesian.training.slurm_task import SlurmTask

_WAIT = 900.0  # seconds until a process that did not come through the door is given up
_PATIENCE = 10.0  # seconds for the others to hear of a failure, and until a process is taken for stuck
_POLL = 0.1
_LOST = (DistNetworkError, DistStoreError, RuntimeError)


class Ranks:
    """The connection among the tasks of a step, over which they tell each other what came of them.

    Parameters
    ----------
    task : SlurmTask
        This process.

    Raises
    ------
    UserError
        If the first task can't be reached.
    """

    def __init__(self, task: SlurmTask) -> None:
        from etesian.training.slurm_environment import SlurmProcesses  # Lightning, which takes seconds to import

        self.task = task
        environment = SlurmProcesses()
        self.host, self.port = environment.main_address, environment.main_port
        self.store = self._connect(serves=task.rank == 0)
        self.watched = self._connect(serves=False)
        self.at_ease = threading.Event()
        self._count = 0
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _connect(self, *, serves: bool) -> TCPStore:
        try:
            return TCPStore(self.host, self.port, None, serves, timedelta(seconds=_WAIT), wait_for_workers=False)
        except _LOST as cause:
            raise UserError(
                f"the processes of the job can't connect at {self.host}:{self.port}: {str(cause).splitlines()[0]}",
                where="MASTER_ADDR, MASTER_PORT",
                mend="name an address of the first node, or a port that is free there: export MASTER_PORT=29511",
            ) from cause

    def new_store(self) -> Store:
        """Return a store without entries, the same on every process."""
        self._count += 1
        return PrefixStore(f"part {self._count}", self.store)

    @contextmanager
    def agree(self) -> Iterator[None]:
        """Do what every process does; go on when all are through, or end together.

        Raises
        ------
        UserError
            Of this process, if it is the first that fails.
        SystemExit
            After the failure of another process, which has said why.
        """
        store = self.new_store()
        try:
            yield
        except UserError as error:
            raise self.failed(error) from error
        except BaseException as error:
            self.leave(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
            raise
        store.add("through", 1)
        deadline = time.monotonic() + _WAIT
        while store.add("through", 0) < self.task.tasks:
            if self.status() is not None:
                self.follow()
            if time.monotonic() > deadline:
                raise self.failed(
                    UserError(f"{self.task.tasks - store.add('through', 0)} processes did not come through the checks")
                )
            time.sleep(_POLL)

    def status(self) -> int | None:
        """Return the exit status of a process that failed; None without any."""
        try:
            return int(self.store.get("status")) if self.store.add("failed", 0) else None
        except _LOST:
            return 1  # the first process is gone, and so is what it knew

    def failed(self, error: UserError) -> UserError:
        """Tell the others of a user's mistake that this process met, and return it to be raised.

        Raises
        ------
        SystemExit
            If another process has told of one before.
        """
        if not self.leave(EXIT_CODE):
            raise SystemExit(EXIT_CODE)
        if self.task.tasks == 1:
            return error
        said = f"process {self.task.rank} of {self.task.tasks}, on {socket.gethostname()}, ended the job"
        return UserError.collect([*error.problems, Problem(said, f"job {self.task.name}")])

    def leave(self, status: int) -> bool:
        """Tell the others that this process ends, wait until they heard of it, and return whether it is the first.

        From here on SIGTERM, which srun sends when the first of them is gone, does not change the exit status.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if self.store.add("leaving", 1) > 1:
                self.store.add("heard", 1)
                return False
            self.store.set("status", str(status))
            self.store.add("failed", 1)
            deadline = time.monotonic() + _PATIENCE
            while self.task.rank == 0 and self.store.add("heard", 0) < self.task.tasks - 1:
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL)
        except _LOST:
            return False
        finally:
            self.at_ease.set()
        return True

    def follow(self, patience: float = 0.0) -> None:
        """End this process without a word if another failed, or does so within so many seconds."""
        deadline = time.monotonic() + patience
        while True:
            status = self.status()
            if status is not None:
                self.leave(status)
                raise SystemExit(status)
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL)

    def done(self) -> None:
        """Stop looking after the others: the run is over."""
        self.at_ease.set()

    def _watch(self) -> None:
        """End this process where another one failed and this one, waiting for it, does not notice."""
        while not self.at_ease.wait(1.0):
            try:
                if not self.watched.add("failed", 0):
                    continue
                status = int(self.watched.get("status"))
            except _LOST:
                status = 1
            if not self.at_ease.wait(_PATIENCE):
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)


def connect(ranks: Ranks, backend: str, device: torch.device, timeout: timedelta | None) -> None:
    """Make the process group of a run from the connection that is there."""
    torch.distributed.init_process_group(
        backend, store=ranks.new_store(), rank=ranks.task.rank, world_size=ranks.task.tasks, timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )  # fmt: skip


def agreeing(ranks: Ranks | None) -> AbstractContextManager[None]:
    """Do what every process does, together where there are several: see :meth:`Ranks.agree`."""
    return nullcontext() if ranks is None else ranks.agree()
