"""Logging to MLflow while training goes on, which never waits for the server."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from etesian.errors import UserError
from etesian.training.tracking.content import Point, metric_name, read_points
from etesian.training.tracking.mlflow_run import MLflowRun
from etesian.training.tracking.mlflow_server import NoAnswer

_GATHER = 1.0  # seconds in which metrics are gathered for one request
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between two attempts at a server that does not answer
_AT_ONCE = 1000  # values of metrics in one request

Upload = Callable[[], object]
"""Something that is done at the server."""


class MLflowLogger(Logger):
    """A logger that hands everything to a thread of its own.

    Lightning's MLflowLogger waits for the server in the training step, for up to some minutes where it has gone, and
    refuses a run that goes on with other parameters.

    Parameters
    ----------
    run : MLflowRun
        The run on the server.
    folder : Path
        The run folder.

    Notes
    -----
    What a server that went away did not take is kept and sent when it answers again. :meth:`close` compares the
    server with the run folder, which holds everything, and gives up after a while without an answer.
    """

    def __init__(self, run: MLflowRun, folder: Path) -> None:
        super().__init__()
        self.run, self.folder = run, folder
        self.refused: list[str] = []  # what the server answered to things that it did not take
        self._items: deque[Point | Upload] = deque()
        self._last: dict[str, tuple[float, int]] = {}  # value and step of each metric
        self._changed = threading.Condition()
        self._closing, self._given_up = False, False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    @property
    def name(self) -> str:
        """What logs."""
        return "mlflow"

    @property
    def version(self) -> str:
        """Id of the run on the server."""
        return self.run.id

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Begin: upload what the run folder holds so far, config and kernels among it."""
        self._put(partial(self.run.upload, self.folder, read_points(self.folder), began=True))
        self._thread.start()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Put the metrics of a step into the queue."""
        if step is None:
            raise ValueError("MLflow needs the step that metrics belong to")
        now = int(time.time() * 1000)
        for key, value in metrics.items():
            point = Point(metric_name(key), float(value), int(step), now)
            if self._last.get(point.key) != point[1:3]:  # the epoch comes with every part of a step
                self._put(point)
            self._last[point.key] = point[1:3]

    def close(self, status: str, patience: float) -> str | None:
        """Upload what is left, say how the run ended, and wait for both.

        Parameters
        ----------
        status : str
            ``FINISHED``, ``FAILED`` or ``KILLED``.
        patience : float
            Seconds without an answer after which the server is given up.

        Returns
        -------
        str or None
            Why the server does not have everything; None if it has.
        """
        if self._thread.ident is None:  # nothing was logged: the run ended before its first step
            self._thread.start()
        else:
            self._put(lambda: self.run.upload(self.folder, read_points(self.folder)))
        self._put(partial(self.run.ends, status))
        self._closing = True
        with self._changed:
            self._changed.notify()
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if time.monotonic() - max(began, self.run.server.answered) > patience:
                self._given_up = True
                return f"{self.run.server.uri} does not answer"
        return self.refused[-1] if self.refused else None

    def _put(self, *items: Point | Upload) -> None:
        with self._changed:
            self._items.extend(items)
            self._changed.notify()

    def _work(self) -> None:
        """Do what is in the queue, in its order, until the logger is closed and the queue is empty."""
        wait = 0.0
        while not self._given_up:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closing)
                if not self._items:
                    return
                self._changed.wait_for(lambda: self._closing, wait or _GATHER)
                task, size = self._next()
            try:
                task()
            except NoAnswer as error:
                wait = self._wait_after(error, wait)
                continue
            except UserError as error:
                self.refused.append(error.problems[0].what)
            except Exception as error:  # training goes on; close() tells
                self.refused.append(f"{type(error).__name__}: {error}")
            if wait:
                print(f"MLflow: {self.run.server.uri} answers again", file=sys.stderr, flush=True)
            wait = 0.0
            with self._changed:
                for _ in range(size):
                    self._items.popleft()

    def _next(self) -> tuple[Upload, int]:
        """Return what is to be done next, and how many things of the queue it is: metrics go together."""
        first = self._items[0]
        if not isinstance(first, Point):
            return first, 1
        points = []
        for item in islice(self._items, _AT_ONCE):
            if not isinstance(item, Point):
                break
            points.append(item)
        return partial(self.run.log, points), len(points)

    def _wait_after(self, error: NoAnswer, wait: float) -> float:
        """Return how long to wait for the next attempt, and say so at the first."""
        if self._closing:
            time.sleep(_FIRST_WAIT)
        elif not wait:
            print(f"MLflow: {error.problems[0].what}; training goes on, metrics.csv holds what it lacks until then",
                  file=sys.stderr, flush=True)  # fmt: skip
        return min(2 * wait, _LONGEST_WAIT) if wait else _FIRST_WAIT
