"""The trackers of a run: checked before the data, opened before the first step, closed with how the run ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytorch_lightning.loggers.logger import Logger

from etesian.schema.diagnostics import LogSettings
from etesian.training.run_folder import RunFolder
from etesian.training.stop_request import Stopped
from etesian.training.tracking.content import pictures, read_points, score_metrics
from etesian.training.tracking.mlflow_logger import MLflowLogger
from etesian.training.tracking.mlflow_run import open_run
from etesian.training.tracking.mlflow_server import Server
from etesian.training.tracking.record import TrackingRecord
from etesian.training.tracking.tensorboard import TensorBoardFiles
from etesian.training.tracking.wandb_logger import WandbRun

_PATIENCE = {"FINISHED": 15.0, "FAILED": 10.0, "KILLED": 5.0}  # seconds that a silent server holds up the end


@contextmanager
def tracking(log: LogSettings, run: RunFolder) -> Iterator[list[Logger]]:
    """Open the trackers of a run, and close them with how the body ended.

    Parameters
    ----------
    log : LogSettings
        The section ``diagnostics.log``.
    run : RunFolder
        The run folder; its ``tracking.json`` keeps under which names the run goes on.

    Yields
    ------
    list of Logger
        For Lightning.

    Raises
    ------
    UserError
        If a server does not answer.
    """
    if not (log.mlflow.enabled or log.wandb.enabled):
        yield [TensorBoardFiles(run.path)] if log.tensorboard.enabled else []
        return
    record = TrackingRecord.read(run.path)
    record.started, record.status = record.started or int(time.time() * 1000), None
    loggers: list[Logger] = []
    status = "FAILED"
    try:
        for logger in _opened(log, run.path, record):
            loggers.append(logger)
        record.write(run.path)
        yield loggers
        status = "FINISHED"
    except (Stopped, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        record.status = status
        if loggers or log.mlflow.offline:
            record.write(run.path)
        _close(loggers, status, run)


def _opened(log: LogSettings, folder: Path, record: TrackingRecord) -> Iterator[Logger]:
    if log.tensorboard.enabled:
        yield TensorBoardFiles(folder)
    if log.mlflow.enabled and not log.mlflow.offline:
        assert log.mlflow.tracking_uri is not None
        opened = open_run(Server(log.mlflow.tracking_uri), log.mlflow, folder, record)
        if not opened.is_new:
            opened.goes_on()
        print(f"MLflow: {opened.url}", flush=True)
        yield MLflowLogger(opened, folder)
    if log.wandb.enabled:
        yield WandbRun(log.wandb, folder, record, _PATIENCE["FINISHED"])


def _close(loggers: Iterable[Logger], status: str, run: RunFolder) -> None:
    """Close every tracker, and say what did not reach a server."""
    for logger in loggers:
        if isinstance(logger, WandbRun) and (again := logger.close(status)):
            print(f"Weights & Biases did not take everything; `{again}` uploads it", file=sys.stderr, flush=True)
        elif isinstance(logger, MLflowLogger) and (reason := logger.close(status, _PATIENCE[status])):
            again = f"anemoi-training mlflow sync {run.path}"
            print(f"MLflow: {reason}; `{again}` uploads what it lacks", file=sys.stderr, flush=True)


def log_results(loggers: Sequence[Logger], folder: Path) -> None:
    """Show scores and pictures of a finished run; MLflow gets them with the rest of the run folder.

    Parameters
    ----------
    loggers : sequence of Logger
        Those of the run.
    folder : Path
        The run folder.
    """
    shown = [logger for logger in loggers if isinstance(logger, TensorBoardFiles | WandbRun)]
    if not shown:
        return
    step = max((point.step for point in read_points(folder)), default=0)
    file = folder / "metrics.json"
    scores = score_metrics(json.loads(file.read_text())) if file.is_file() else {}
    for logger in shown:
        if scores:
            logger.log_metrics(scores, step)
        logger.log_pictures(pictures(folder), step)
        if isinstance(logger, TensorBoardFiles):
            logger.finalize("success")
