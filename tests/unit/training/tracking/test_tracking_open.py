"""How a run ended is kept, for the trackers that are told later."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian.schema.diagnostics import LogSettings
from etesian.training.run_folder import RunFolder
from etesian.training.stop_request import Stopped
from etesian.training.tracking.open import tracking
from etesian.training.tracking.record import TrackingRecord
from etesian.training.tracking.tensorboard import TensorBoardFiles

OFFLINE = LogSettings(mlflow={"enabled": True, "offline": True})


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (Stopped("SIGTERM"), "KILLED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(1), "FAILED"),
     (ValueError(), "FAILED")],
)  # fmt: skip
def test_the_status_is_kept(tmp_path: Path, error: BaseException | None, status: str) -> None:
    run = RunFolder(tmp_path, "r")
    TrackingRecord({"http://a": "1"}, None, 7, "KILLED").write(run.path)

    def body() -> None:
        with tracking(OFFLINE, run) as loggers:
            assert loggers == []
            assert TrackingRecord.read(run.path).status is None
            if error is not None:
                raise error

    if error is None:
        body()
    else:
        with pytest.raises(type(error)):
            body()
    assert TrackingRecord.read(run.path) == TrackingRecord({"http://a": "1"}, None, 7, status)


def test_without_a_server_nothing_is_written(tmp_path: Path) -> None:
    with tracking(LogSettings(), RunFolder(tmp_path, "r")) as loggers:
        assert loggers == []
    with tracking(LogSettings(tensorboard={"enabled": True}), RunFolder(tmp_path, "r")) as (logger,):
        assert isinstance(logger, TensorBoardFiles)
        logger.resume_from(3)
        assert logger._kwargs["purge_step"] == 3
    assert list(tmp_path.iterdir()) == []
