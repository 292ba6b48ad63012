"""MLflow and Weights & Biases, processes that have them, and an MLflow server: ``from tracking_site import Server``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from library_site import LibrarySite, run_python

TRACKING = LibrarySite("tracking", ("alembic", "flask", "mlflow", "sqlalchemy", "uvicorn", "wandb"))


def run(folder: Path, *arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of etesian in a process that has the libraries: ``run(folder, "train", "training.seed=1")``."""
    command = ["-m", "etesian", *arguments]
    return run_python(*command, folder=folder, sites=[TRACKING], variables=variables, check=check)


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start such a process, to be watched while it runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "etesian", *arguments], cwd=folder, env=environment(**variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of such a process."""
    paths = os.pathsep.join([*(path or os.getcwd() for path in sys.path), str(TRACKING.folder())])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}


class Server:
    """A real MLflow server on SQLite, as a context manager; one that was stopped can be started again.

    Parameters
    ----------
    folder : Path
        Where it keeps its database and the files of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///runs.db",
                 "--artifacts-destination", "artifacts", "--port", str(self.port), "--workers", "1"],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env=environment(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true"),
            )  # fmt: skip
        deadline = time.monotonic() + 90
        while not self._answers():
            said = (self.folder / "server.log").read_text()[-2000:]
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)

    def stop(self) -> None:
        """Kill it, with the processes that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the server answers to a request of its REST API."""
        request = urllib.request.Request(f"{self.uri}/api/2.0/{path}")
        if body is not None:
            request.data, request.headers = json.dumps(body).encode(), {"Content-type": "application/json"}
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a run: ``info`` and ``data``."""
        return self.ask(f"mlflow/runs/get?run_id={run_id}")["run"]

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """Return step and value of all that was logged of a metric, in the order of the steps."""
        found = self.ask(f"mlflow/metrics/get-history?run_id={run_id}&metric_key={metric}&max_results=5000")
        return sorted((int(one["step"]), float(one["value"])) for one in found.get("metrics", []))

    def files(self, run_id: str, folder: str = "") -> list[str]:
        """Return the names of the files of a run, in one folder of it."""
        found = self.ask(f"mlflow/artifacts/list?run_id={run_id}&path={folder}")
        return sorted(one["path"] for one in found.get("files", []) if not one["is_dir"])

    def runs(self, experiment: str) -> list[str]:
        """Return the ids of the runs of an experiment."""
        found = self.ask(f"mlflow/experiments/get-by-name?experiment_name={experiment}")
        body = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        return [run["info"]["run_id"] for run in self.ask("mlflow/runs/search", body).get("runs", [])]
