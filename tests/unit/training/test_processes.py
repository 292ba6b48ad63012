"""Who says why a run of several processes ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etesian.errors import UserError
from etesian.training import processes
from etesian.training.finite import FiniteLosses, LostError
from etesian.training.processes import Launcher


def launcher(*states: int | None) -> Launcher:
    """Return the launcher of processes that ended so."""
    made = object.__new__(Launcher)
    made.procs = [SimpleNamespace(poll=lambda state=state: state) for state in states]  # type: ignore[misc]
    made.cluster_environment = SimpleNamespace(node_rank=lambda: 1)  # type: ignore[assignment]
    made.num_processes, made.num_nodes = 1 + len(states), 2
    return made


@pytest.mark.parametrize(
    ("states", "status"),
    [((None, None), None), ((0, 0), None), ((0, 2), 2), ((1, -9), 137), ((2, None, 1), 2), ((-15, -9), 143)],
)
def test_the_process_that_a_signal_ended_counts_first(states: tuple[int | None, ...], status: int | None) -> None:
    assert launcher(*states).status(0.0) == status


def test_a_process_that_a_signal_ended_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    launcher(1, None).tell()
    assert capsys.readouterr().err == ""
    launcher(1, -9).tell()  # the second that node 1 started, beside the first one of its three
    told = capsys.readouterr().err
    assert told.startswith("error: process 5 of 6, on ")
    assert "was ended by SIGKILL" in told
    assert "ran out of memory" in told
    launcher(-11).tell()
    told = capsys.readouterr().err
    assert "process 3 of 4, on " in told
    assert "SIGSEGV" in told
    assert "memory" not in told


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), True),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (RuntimeError("CUDA out of memory"), False),
        (UserError("no"), False),
    ],
)
def test_a_lost_connection_is_no_cause(error: Exception, lost: bool) -> None:
    assert processes._lost_connection(error) is lost


@pytest.mark.parametrize("error", [UserError("no", where="a.key"), torch.OutOfMemoryError("CUDA out of memory")])
def test_the_first_that_fails_is_named(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = SimpleNamespace(world_size=2, global_rank=1)
    left = processes._failed(error, trainer, None)
    said = str(left) if isinstance(left, UserError) else str(getattr(left, "__notes__", ""))
    assert "process 1 of 2, on " in said
    assert "ended the run" in said
    monkeypatch.setattr(processes, "_is_first_to_fail", lambda: False)
    left = processes._failed(error, trainer, None)
    assert isinstance(left, SystemExit)
    assert left.code == (2 if isinstance(error, UserError) else 1)


def test_one_process_and_what_all_see_name_nobody() -> None:
    error = UserError("no")
    assert processes._failed(error, SimpleNamespace(world_size=1), None) is error  # type: ignore[arg-type]
    lost = LostError("no")
    assert processes._failed(lost, SimpleNamespace(world_size=2, global_rank=0), None) is lost  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([0.0, 1.0, 0.0], "after step 4 is nan, in process 1 of 3"),
        ([1.0, 0.0, 1.0], "after step 4 is nan, in processes 0, 2 of 3"),
        ([1.0, 1.0, 1.0], "after step 4 is nan, in every process"),
        ([0.0, 0.0, 0.0], "after step 4 is nan"),
    ],
)
def test_a_lost_loss_names_its_processes(lost: list[float], said: str) -> None:
    trainer: Any = SimpleNamespace(
        global_step=4, world_size=3, global_rank=0, callback_metrics={"train_loss": torch.tensor(float("nan"))},
        strategy=SimpleNamespace(reduce=lambda own, reduce_op: torch.tensor(lost)),
    )  # fmt: skip
    with pytest.raises(LostError) as caught:
        FiniteLosses(1).on_train_batch_end(trainer, trainer, {"loss": torch.tensor(1.0)}, None, 0)
    assert caught.value.problems[0].what == f"the training loss {said}"
