"""A run on an MLflow server: found or made, and brought to what a run folder holds."""

from __future__ import annotations

import getpass
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etesian import __version__
from etesian.errors import UserError
from etesian.schema.diagnostics import MLflowSettings
from etesian.training.tracking.content import FILES, Point, markdown, pictures, read_kernels, read_parameters
from etesian.training.tracking.mlflow_server import NoAnswer, Server
from etesian.training.tracking.record import NAME, TrackingRecord

_METRICS, _PARAMETERS = 1000, 100  # the most that a server takes at once
_LONGEST_TAG = 5000


class MLflowRun:
    """A run on a server.

    Parameters
    ----------
    server : Server
        The server.
    run : mlflow.entities.Run
        What it says of the run.
    is_new : bool
        Whether nothing was logged to it yet.
    """

    def __init__(self, server: Server, run: Any, *, is_new: bool) -> None:
        self.server, self.client, self.is_new = server, server.client, is_new
        self.id, self.started = run.info.run_id, run.info.start_time
        self.url = f"{server.uri}/#/experiments/{run.info.experiment_id}/runs/{self.id}"
        self.ahead: dict[str, dict[int, float]] = {}  # what it has of steps that will be done again

    def goes_on(self) -> None:
        """Say that the run is under way."""
        with self.server.asked():
            self.client.update_run(self.id, status="RUNNING")

    def ends(self, status: str) -> None:
        """Say that it ended: ``FINISHED``, ``FAILED`` or ``KILLED``."""
        with self.server.asked():
            self.client.set_terminated(self.id, status)

    def upload(self, folder: Path, points: Sequence[Point], *, began: bool = False) -> int:
        """Bring parameters, files, pictures and metrics to what a run folder holds; what is there stays once.

        Parameters
        ----------
        folder : Path
            The run folder.
        points : sequence of Point
            Its metrics.
        began : bool
            Whether a process begins to log: what the server has of later steps, which are done again, is remembered.

        Returns
        -------
        int
            Values of metrics that the server did not have.
        """
        self._log_parameters(read_parameters(folder))
        for name in FILES:
            if (folder / name).is_file():
                self._log_file(folder / name)
        with self.server.asked():
            self.client.log_text(self.id, markdown(read_kernels(folder)) + "\n", "kernels.md")
        for picture in pictures(folder):
            self._log_file(picture, "plots")
        if commit := _commit(folder / "environment.json"):
            self._set_tag("mlflow.source.git.commit", commit)
        histories = {} if self.is_new else self._histories()
        self.is_new = False
        if began:
            last = max((point.step for point in points), default=-1)
            self.ahead = {
                key: {step: value for step, value in history.items() if step > last}
                for key, history in histories.items()
            }
        missing = [point for point in points if not _has(histories, point)]
        self.log(dated(missing, self.started, _changed(folder / "metrics.csv")))
        return len(missing)

    def log(self, points: Sequence[Point]) -> None:
        """Log metrics, but for those that the server has of steps that are done again."""
        from mlflow.entities import Metric

        new = [Metric(p.key, p.value, p.time, p.step) for p in points if not _has(self.ahead, p)]
        for first in range(0, len(new), _METRICS):
            with self.server.asked():
                self.client.log_batch(self.id, metrics=new[first : first + _METRICS])

    def _histories(self) -> dict[str, dict[int, float]]:
        """Return what the server has of every metric, by step; of several values of a step the last."""
        with self.server.asked():
            keys = self.client.get_run(self.id).data.metrics
        histories = {}
        for key in keys:
            with self.server.asked():
                history = self.client.get_metric_history(self.id, key)
            histories[key] = {metric.step: metric.value for metric in sorted(history, key=lambda one: one.timestamp)}
        return histories

    def _log_parameters(self, parameters: dict[str, str]) -> None:
        """Log parameters that the server lacks; those with another value, which it would refuse, go into a tag."""
        from mlflow.entities import Param

        with self.server.asked():
            there = self.client.get_run(self.id).data.params
        new = [Param(key, value) for key, value in parameters.items() if key not in there]
        for first in range(0, len(new), _PARAMETERS):
            with self.server.asked():
                self.client.log_batch(self.id, params=new[first : first + _PARAMETERS])
        changed = [f"{key}: {there[key]} -> {now}" for key, now in parameters.items() if there.get(key, now) != now]
        if changed:
            self._set_tag("etesian.changed_since", "\n".join(changed)[:_LONGEST_TAG])

    def _set_tag(self, name: str, value: str) -> None:
        with self.server.asked():
            self.client.set_tag(self.id, name, value)

    def _log_file(self, file: Path, place: str | None = None) -> None:
        with self.server.asked():
            self.client.log_artifact(self.id, str(file), place)


def open_run(server: Server, settings: MLflowSettings, folder: Path, record: TrackingRecord) -> MLflowRun:
    """Return the run of a run folder, made if this server does not have it yet; the record keeps its id.

    Raises
    ------
    UserError
        If the server does not answer, or has deleted the run.
    """
    known = record.mlflow.get(server.uri)
    if known is not None:
        return _known_run(server, known, folder)
    experiment = server.experiment(settings.experiment_name, make=True)
    with server.asked():
        run = server.client.create_run(
            experiment, start_time=record.started, tags=_tags(folder), run_name=settings.run_name or folder.name
        )
    record.mlflow[server.uri] = run.info.run_id
    record.write(folder)
    return MLflowRun(server, run, is_new=True)


def _known_run(server: Server, run_id: str, folder: Path) -> MLflowRun:
    try:
        with server.asked():
            run = server.client.get_run(run_id)
    except NoAnswer:
        raise
    except UserError as error:
        if "does not exist" not in str(error) and "not found" not in str(error):
            raise
        run = None
    if run is None or run.info.lifecycle_stage == "deleted":
        raise UserError(
            f"the MLflow server {server.uri} no longer has run {run_id}",
            where=str(folder / NAME),
            mend="restore it there, or delete that file: the run then gets a new one with its whole history",
        )
    return MLflowRun(server, run, is_new=False)


def dated(points: Sequence[Point], first: int, last: int) -> list[Point]:
    """Give points without a time one in between, in proportion to their steps.

    Parameters
    ----------
    points : sequence of Point
        The points.
    first, last : int
        Times before the first step and after the last one, in milliseconds since 1970.
    """
    steps = max((point.step for point in points), default=0) + 1
    return [
        point if point.time is not None
        else point._replace(time=first + (max(last, first) - first) * (point.step + 1) // steps)
        for point in points
    ]  # fmt: skip


def _has(histories: dict[str, dict[int, float]], point: Point) -> bool:
    there = histories.get(point.key, {}).get(point.step)
    return there is not None and (
        math.isclose(there, point.value, rel_tol=1e-9) or (math.isnan(there) and math.isnan(point.value))
    )


def _changed(file: Path) -> int:
    return int((file.stat().st_mtime if file.exists() else time.time()) * 1000)


def _tags(folder: Path) -> dict[str, str]:
    """Return who started what, as MLflow's own tags, and the run's name here."""
    tags = {"etesian.run_id": folder.name, "etesian.version": __version__, "mlflow.source.type": "LOCAL"}
    tags["mlflow.source.name"] = "anemoi-training train"
    tags["mlflow.user"] = _user()
    return tags


def _commit(file: Path) -> str | None:
    try:
        return json.loads(file.read_text())["git"]["commit"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for this user
        return str(os.getuid())
