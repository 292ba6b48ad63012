"""What is logged to MLflow, in which order, and what a server that goes away changes."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from etesian.errors import UserError
from etesian.training.tracking import mlflow_logger
from etesian.training.tracking.content import Point
from etesian.training.tracking.mlflow_logger import MLflowLogger
from etesian.training.tracking.mlflow_run import MLflowRun, dated
from etesian.training.tracking.mlflow_server import NoAnswer, Server


class Client:
    """A server that keeps what it is told, unless it is away."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.files: list[str] = []
        self.status: list[str] = []

    def get_run(self, run_id: str) -> Any:
        metrics = {point.key: point.value for point in self.points}
        return SimpleNamespace(data=SimpleNamespace(metrics=metrics, params=dict(self.params)))

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=p.step, value=p.value, timestamp=p.time) for p in self.points if p.key == key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.points += metrics
        self.params.update(params)

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.tags[name] = value

    def log_text(self, run_id: str, text: str, name: str) -> None:
        self.files.append(name)

    def log_artifact(self, run_id: str, file: str, place: str | None) -> None:
        self.files.append("/".join([*([place] if place else []), Path(file).name]))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.status.append(status)


class FakeServer:
    """A server of :class:`Client` that can be told to go away."""

    uri = "http://fake"

    def __init__(self) -> None:
        self.client, self.answered = Client(), time.monotonic()
        self.away, self.refuses = threading.Event(), False

    @contextmanager
    def asked(self):
        if self.away.is_set():
            raise NoAnswer("the MLflow server http://fake does not answer: Connection refused")
        if self.refuses:
            raise UserError("the MLflow server http://fake refuses: no")
        yield
        self.answered = time.monotonic()


@pytest.fixture(autouse=True)
def entities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the two classes of the library that are used."""
    module = ModuleType("mlflow.entities")
    module.Metric = lambda key, value, time, step: Point(key, value, step, time)
    module.Param = lambda key, value: (key, value)
    monkeypatch.setitem(sys.modules, "mlflow.entities", module)
    monkeypatch.setattr(mlflow_logger, "_GATHER", 0.01)
    monkeypatch.setattr(mlflow_logger, "_FIRST_WAIT", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("training: {max_epochs: 2}\n")
    (tmp_path / "kernels.json").write_text("[]")
    return tmp_path


def make_run(*, is_new: bool = True) -> tuple[FakeServer, MLflowRun]:
    server = FakeServer()
    info = SimpleNamespace(run_id="r", start_time=1000, experiment_id="7")
    return server, MLflowRun(server, SimpleNamespace(info=info), is_new=is_new)


def write_history(folder: Path, *losses: float) -> None:
    rows = [f"0,{step},{loss}" for step, loss in enumerate(losses)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,step,loss", *rows, ""]))


def logged(server: FakeServer, key: str = "loss") -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in server.client.points if point.key == key]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_is_logged_while_it_goes_on(folder: Path) -> None:
    server, run = make_run()
    logger = MLflowLogger(run, folder)
    logger.log_hyperparams({})
    logger.log_metrics({"loss": 0.5, "epoch": 0}, 0)
    logger.log_metrics({"val@loss": 0.25, "epoch": 0}, 0)
    until(lambda: len(server.client.points) == 3)
    write_history(folder, 0.5, 0.25)
    assert logger.close("FINISHED", 5) is None
    assert logged(server) == [(0, 0.5), (1, 0.25)]
    assert logged(server, "val_loss") == [(0, 0.25)]
    assert logged(server, "epoch") == [(0, 0.0), (1, 0.0)]
    assert server.client.params == {"training.max_epochs": "2"}
    assert {"config.yaml", "kernels.md", "metrics.csv"} <= set(server.client.files)
    assert server.client.status == ["FINISHED"]


def test_what_a_server_missed_is_sent_when_it_answers_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, run = make_run()
    server.away.set()
    logger = MLflowLogger(run, folder)
    logger.log_hyperparams({})
    began = time.monotonic()
    for step in range(1500):
        logger.log_metrics({"loss": step}, step)
    assert time.monotonic() - began < 1.0
    time.sleep(0.1)
    server.away.clear()
    until(lambda: len(server.client.points) == 1500)
    write_history(folder, *range(1500))
    assert logger.close("FAILED", 5) is None
    assert logged(server) == [(step, float(step)) for step in range(1500)]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "MLflow: the MLflow server http://fake does not answer: Connection refused; training goes on, metrics.csv "
        "holds what it lacks until then",
        "MLflow: http://fake answers again",
    ]


def test_a_silent_server_is_given_up(folder: Path) -> None:
    server, run = make_run()
    logger = MLflowLogger(run, folder)
    logger.log_hyperparams({})
    server.away.set()
    logger.log_metrics({"loss": 1.0}, 0)
    began = time.monotonic()
    assert logger.close("FINISHED", 0.3) == "http://fake does not answer"
    assert 0.3 <= time.monotonic() - began < 2.0
    until(lambda: not logger._thread.is_alive())


def test_what_a_server_refuses_does_not_hold_up_the_rest(folder: Path) -> None:
    server, run = make_run()
    (folder / "config.yaml").unlink()  # what can't be read is told, too
    logger = MLflowLogger(run, folder)
    logger.log_hyperparams({})
    logger.log_metrics({"loss": 1.0}, 0)
    until(lambda: logged(server))
    server.refuses = True
    logger.log_metrics({"loss": 2.0}, 1)
    until(lambda: len(logger.refused) == 2)
    assert "config.yaml can't be read" in logger.refused[0]
    server.refuses = False
    assert logger.close("FINISHED", 5) is not None
    assert server.client.status == ["FINISHED"]


def test_a_run_that_ended_before_its_first_step(folder: Path) -> None:
    server, run = make_run()
    assert MLflowLogger(run, folder).close("FAILED", 5) is None
    assert (server.client.status, server.client.files) == (["FAILED"], [])


def test_an_upload_adds_what_is_missing_once(folder: Path) -> None:
    server, run = make_run(is_new=False)
    server.client.points = [Point("loss", 0.5, 0, 1), Point("loss", float("nan"), 2, 1)]
    write_history(folder, 0.5, 0.25, float("nan"))
    from etesian.training.tracking.content import read_points

    assert run.upload(folder, read_points(folder)) == 4  # a loss, three epochs
    assert run.upload(folder, read_points(folder)) == 0
    assert sorted(step for step, _ in logged(server)) == [0, 1, 2]


def test_steps_that_are_done_again_come_once(folder: Path) -> None:
    server, run = make_run(is_new=False)
    server.client.points = [Point("loss", float(step), step, step) for step in range(6)]
    write_history(folder, 0.0, 1.0)
    run.upload(folder, [Point("loss", 0.0, 0), Point("loss", 1.0, 1)], began=True)
    run.log([Point("loss", float(step), step, 9) for step in range(2, 8)])
    assert logged(server) == [(step, float(step)) for step in range(8)]
    run.log([Point("loss", 3.5, 3, 10)])  # with another value it is another result
    assert logged(server)[-1] == (3, 3.5)


def test_parameters_that_changed_go_into_a_tag(folder: Path) -> None:
    server, run = make_run(is_new=False)
    server.client.params = {"training.max_epochs": "1"}
    run.upload(folder, [])
    assert server.client.params == {"training.max_epochs": "1"}
    assert server.client.tags == {"etesian.changed_since": "training.max_epochs: 1 -> 2"}


def test_times_in_between() -> None:
    points = [Point("a", 0.0, 0), Point("a", 0.0, 1, 7), Point("a", 0.0, 3)]
    assert [point.time for point in dated(points, 1000, 2000)] == [1250, 7, 2000]
    assert dated([], 0, 1) == []


class RefusedError(Exception):
    """As the library tells of an answer."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.get_http_status_code = lambda: status


@pytest.mark.parametrize(
    ("cause", "kind", "said"),
    [
        (RefusedError("API request to endpoint /x failed with error code 404 != 200.", 404), UserError, "there is no"),
        (RefusedError("API request to endpoint /x failed with error code 401 != 200.", 500), UserError, "lets nobody"),
        (RefusedError("PERMISSION_DENIED: no", 403), UserError, "lets nobody in: PERMISSION_DENIED"),
        (RefusedError("INVALID_PARAMETER_VALUE: x" * 50, 400), UserError, "refuses: INVALID"),
        (RefusedError("API request failed with error code 503", 500), NoAnswer, "does not answer: API request"),
        (OSError(111, "Connection refused"), NoAnswer, "does not answer: Connection refused"),
        (TimeoutError("Read timed out. (read timeout=10)"), NoAnswer, "does not answer: nothing within 10 s"),
    ],
)
def test_what_goes_wrong_in_words(cause: Exception, kind: type, said: str) -> None:
    server = Server.__new__(Server)
    server.uri, server.where = "http://h", "--tracking-uri"
    error = server._error(cause)
    assert type(error) is kind
    assert said in str(error)
    assert "http://h" in str(error)
    assert len(str(error).splitlines()[0]) < 300
