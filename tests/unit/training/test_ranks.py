"""The tasks of a step tell each other what came of them. Here they are threads; tests/slurm has real ones."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from etesian.errors import UserError
from etesian.training import ranks as module
from etesian.training.ranks import Ranks, agreeing, connect
from etesian.training.slurm_task import SlurmTask

Maker = Callable[[int], list[Ranks]]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(number))
    return number


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit statuses with which this process would have ended."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    return statuses


def task(rank: int, tasks: int) -> SlurmTask:
    return SlurmTask(job="41", name="41", step=0, restarts=0, rank=rank, tasks=tasks, nodes=tasks)


@pytest.fixture
def make(port: int) -> Iterator[Maker]:
    """Make the connections of so many tasks; SIGTERM is set back, which a task that leaves does not take."""
    made: list[Ranks] = []
    before = signal.getsignal(signal.SIGTERM)

    def start(tasks: int) -> list[Ranks]:
        made.extend(Ranks(task(rank, tasks)) for rank in range(tasks))
        return made

    yield start
    for one in made:
        one.done()
    signal.signal(signal.SIGTERM, before)


def fails(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def nothing() -> None:
    """Do what never fails."""


def outcome(meeting: Callable[[], AbstractContextManager[None]], work: Callable[[], None]) -> BaseException | None:
    try:
        with meeting():
            work()
    except BaseException as error:
        return error
    return None


def together(ranks: list[Ranks], *works: Callable[[], None]) -> list[BaseException | None]:
    """Let each task do its work, and return how each ended: the first task here, the others in threads."""
    found: list[BaseException | None] = [None] * len(ranks)

    def do(rank: int) -> None:
        found[rank] = outcome(ranks[rank].agree, works[rank])

    threads = [threading.Thread(target=do, args=(rank,)) for rank in range(1, len(ranks))]
    for thread in threads:
        thread.start()
    do(0)
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return found


def test_all_go_on_when_the_last_is_through(make: Maker) -> None:
    ends = []
    ranks = make(3)
    found = together(ranks, nothing, lambda: (time.sleep(0.5), ends.append(time.monotonic()))[0], nothing)
    assert found == [None] * 3
    assert time.monotonic() >= ends[0]
    assert together(ranks, nothing, nothing, nothing) == [None] * 3  # and again


@pytest.mark.parametrize("first", [0, 1])
def test_a_mistake_is_told_by_the_process_that_met_it(make: Maker, first: int) -> None:
    works = [nothing, nothing]
    works[first] = fails(UserError("what went wrong", where="this.key"))
    found = together(make(2), *works)
    told, other = found[first], found[1 - first]
    assert isinstance(told, UserError)
    assert [(problem.what, problem.where) for problem in told.problems] == [
        ("what went wrong", "this.key"),
        (f"process {first} of 2, on {socket.gethostname()}, ended the job", "job 41"),
    ]
    assert isinstance(other, SystemExit)
    assert other.code == 2
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_mistake_that_all_make_is_told_once(make: Maker) -> None:
    found = together(make(3), *[fails(UserError("what went wrong"))] * 3)
    assert sorted(type(error).__name__ for error in found) == ["SystemExit", "SystemExit", "UserError"]
    assert {error.code for error in found if isinstance(error, SystemExit)} == {2}


@pytest.mark.parametrize(
    ("error", "status"),
    [(SystemExit(143), 143), (SystemExit("words"), 1), (RuntimeError("a fault"), 1), (KeyboardInterrupt(), 1)],
    ids=repr,
)
def test_whatever_else_ends_one_process_ends_the_others(make: Maker, error: BaseException, status: int) -> None:
    other, own = together(make(2), nothing, fails(error))
    assert own is error
    assert isinstance(other, SystemExit)
    assert other.code == status


def test_a_process_alone_tells_its_mistake_as_it_is(make: Maker) -> None:
    error = UserError("what went wrong")
    assert together(make(1), fails(error)) == [error]


def test_a_process_that_never_comes_is_not_waited_for(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    ranks = make(2)
    monkeypatch.setattr(module, "_WAIT", 0.3)
    with pytest.raises(UserError, match="1 processes did not come through the checks"), ranks[0].agree():
        pass


def test_a_process_follows_another_that_failed(make: Maker) -> None:
    first, second = make(2)
    assert second.status() is None
    second.follow(patience=0.2)
    threading.Timer(0.3, first.leave, (143,)).start()
    with pytest.raises(SystemExit) as ended:
        second.follow(patience=30)
    assert ended.value.code == second.status() == 143


@pytest.mark.parametrize("status", [2, 143])
def test_a_process_that_does_not_notice_is_ended(
    make: Maker, exits: list[int], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    first, second = make(2)
    first.leave(status)
    deadline = time.monotonic() + 20
    while not exits and time.monotonic() < deadline:
        time.sleep(0.05)
    second.done()
    assert exits[:1] == [status]


def test_one_that_is_through_is_left_alone(make: Maker, exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    first, second = make(2)
    second.done()
    first.leave(2)
    time.sleep(1.5)
    assert exits == []


def test_a_first_process_that_is_gone_is_a_failure(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = make(2)

    def gone(*_: object) -> int:
        raise torch.distributed.DistNetworkError("connection reset by peer")

    monkeypatch.setattr(torch.distributed.PrefixStore, "add", gone)
    monkeypatch.setattr(torch.distributed.TCPStore, "add", gone)
    assert second.status() == 1
    with pytest.raises(SystemExit) as ended:
        second.follow()
    assert ended.value.code == 1


def test_a_port_that_is_in_use(port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(UserError, match=f"the processes of the job can't connect at 127.0.0.1:{port}: ") as caught:
            Ranks(task(0, 2))
    assert caught.value.problems[0].where == "MASTER_ADDR, MASTER_PORT"
    assert "export MASTER_PORT=" in (caught.value.problems[0].mend or "")


def test_a_process_group_of_the_connection_that_is_there(make: Maker) -> None:
    (alone,) = make(1)
    try:
        connect(alone, "gloo", torch.device("cpu"), None)
        number = torch.ones(1)
        torch.distributed.all_reduce(number)
        assert (torch.distributed.get_world_size(), float(number)) == (1, 1.0)
    finally:
        torch.distributed.destroy_process_group()


def test_stores_are_the_same_on_every_process_and_begin_empty(make: Maker) -> None:
    first, second = make(2)
    one, other = first.new_store(), second.new_store()
    one.set("name", "value")
    assert other.get("name") == b"value"
    assert second.new_store().add("name", 0) == 0


def test_without_slurm_there_is_nobody_to_agree_with() -> None:
    with pytest.raises(UserError, match=r"^error: what went wrong$"), agreeing(None):
        raise UserError("what went wrong")
