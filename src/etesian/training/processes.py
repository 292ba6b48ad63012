"""The processes of one run: those that fail end the others, with their own status and no second complaint."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.distributed import _set_num_threads_if_needed
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from pytorch_lightning.trainer.states import TrainerStatus
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from etesian.errors import UserError
from etesian.training.ranks import Ranks, connect
from etesian.training.stop_request import Stopped

_PATIENCE = 10.0  # seconds until a process is taken for stuck, or for one that will not end by itself
_POLL = 0.2  # seconds between two looks at the other processes
_NAMES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")  # what the launcher sets


class Launcher(_SubprocessScriptLauncher):
    """Starts the other processes of this machine, and watches them; they in turn watch the one that started them.

    Lightning's own watch kills the main process without a word five seconds later at most, whatever it was doing.
    """

    def launch(self, function: Callable, *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Start the processes, unless something else did, and call `function`."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self.before = {name: os.environ.get(name) for name in _NAMES}
            self._call_children_scripts()
            self.at_ease = threading.Event()
            threading.Thread(target=self._watch, name="watch", daemon=True).start()
        else:
            threading.Thread(target=_leave_with, args=(os.getppid(),), name="watch", daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def status(self, patience: float) -> int | None:
        """Return the exit status of a process that failed, waiting for one for so many seconds; None without any."""
        deadline = time.monotonic() + patience
        while True:
            states = [process.poll() for process in self.procs]
            failed = [state for state in states if state]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if time.monotonic() > deadline or None not in states:
                return None
            time.sleep(_POLL)

    def end(self, patience: float) -> None:
        """Wait for the processes to end, so many seconds at most, then kill what is left."""
        self.at_ease.set()
        deadline = time.monotonic() + patience
        for process in self.procs:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def _watch(self) -> None:
        """End this process where another one failed and this one, waiting for it, does not notice."""
        while not self.at_ease.wait(_POLL):
            status = self.status(0.0)
            if status is not None and not self.at_ease.wait(_PATIENCE):
                for process in self.procs:
                    process.kill()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)


def _leave_with(parent: int) -> None:
    """End this process once the one that started it is gone, which it may be waiting for."""
    while os.getppid() == parent:
        time.sleep(_POLL)
    os._exit(1)


class DataParallel(DDPStrategy):
    """Distributed data parallel with :class:`Launcher`.

    Parameters
    ----------
    ranks : Ranks, optional
        The processes of this run, where Slurm started them.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.ranks = ranks

    def setup_distributed(self) -> None:
        """Connect the processes, over the connection that Slurm's have already."""
        if self.ranks is not None and not torch.distributed.is_initialized():
            connect(self.ranks, self._get_process_group_backend(), self.root_device, self._timeout)
        super().setup_distributed()

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        """Wrap the model; what each process makes from graph and dataset is not sent round before every step.

        Those are the buffers that no state dict holds. Processes that share a model have other ones each.
        """
        kept = model.state_dict().keys()
        names = [name for name, _ in model.named_buffers() if name not in kept]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return super()._setup_model(model)

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)


@contextmanager
def together(trainer: pl.Trainer, *, last: bool = False) -> Iterator[None]:
    """Do what every process of a run does, so that they end together if one fails.

    Parameters
    ----------
    trainer : Trainer
        Of the run.
    last : bool
        Whether nothing comes after it: the other processes are waited for and the connection to them is closed.

    Raises
    ------
    KeyboardInterrupt
        After an interrupt, which Lightning turns into an exit with status 1.
    SystemExit
        Where another process failed: it has said why, so this one leaves with its status. Status 143 after SIGTERM.
    """
    launcher = trainer.strategy.launcher
    own = launcher if isinstance(launcher, Launcher) else None
    ranks = getattr(trainer.strategy, "ranks", None)
    try:
        yield
    except UserError as error:
        _end(own)
        if ranks is not None:
            raise ranks.failed(error) from error
        raise
    except Exception:
        status = own.status(_PATIENCE) if own is not None and own.procs else None
        _end(own)
        if status is not None:
            raise SystemExit(status) from None
        if ranks is not None:
            ranks.follow(_PATIENCE)
            ranks.leave(1)
        raise
    except Stopped:
        _end(own, _PATIENCE)  # the others stop after the same step
        if ranks is not None:
            ranks.done()
        raise
    except SystemExit:
        _end(own)
        if trainer.received_sigterm:
            raise SystemExit(128 + 15) from None
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            raise KeyboardInterrupt from None
        raise
    except BaseException:
        _end(own)
        raise
    if last and ranks is not None:
        ranks.done()
    if last and own is not None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        _end(own, _PATIENCE)


def _end(launcher: Launcher | None, patience: float = 0.0) -> None:
    if launcher is not None and launcher.procs:
        launcher.end(patience)
