"""What ``anemoi-training mlflow sync`` does: an MLflow server gets what it lacks of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from etesian.errors import UserError
from etesian.schema.diagnostics import MLflowSettings
from etesian.training.tracking.content import read_points
from etesian.training.tracking.libraries import MLFLOW, check_installed
from etesian.training.tracking.mlflow_run import open_run
from etesian.training.tracking.mlflow_server import Server
from etesian.training.tracking.record import TrackingRecord


@dataclass(frozen=True)
class Synced:
    """What became of a run on a server: its page, whether it was made, the values of metrics that it lacked."""

    url: str
    is_new: bool
    values: int
    status: str


def sync(folder: Path, tracking_uri: str | None, experiment_name: str | None) -> Synced:
    """Bring a run on an MLflow server to what the run folder holds.

    Parameters
    ----------
    folder : Path
        The run folder.
    tracking_uri, experiment_name : str, optional
        Server and experiment; those of the run's config when left out.

    Raises
    ------
    UserError
        If no server is named, or it does not answer or refuses.
    """
    settings = read_settings(folder)
    uri = tracking_uri or settings.tracking_uri
    if uri is None:
        raise UserError(
            f"run {folder.name!r} names no MLflow server",
            where="diagnostics.log.mlflow.tracking_uri",
            mend="--tracking-uri http://HOST:PORT",
        )
    check_installed([(MLFLOW, "--tracking-uri")])
    chosen = settings.model_copy(update={"experiment_name": experiment_name or settings.experiment_name})
    points, record = read_points(folder), TrackingRecord.read(folder)
    server = Server(uri, "--tracking-uri" if tracking_uri else "diagnostics.log.mlflow.tracking_uri")
    run = open_run(server, chosen, folder, record)
    is_new, status = run.is_new, record.status or _status(folder)
    values = run.upload(folder, points)
    run.ends(status)
    return Synced(run.url, is_new, values, status)


def read_settings(folder: Path) -> MLflowSettings:
    """Return the section ``diagnostics.log.mlflow`` of a run; the defaults for a run that is older than it.

    Raises
    ------
    UserError
        If the folder holds no config.
    """
    file = folder / "config.yaml"
    try:
        config = yaml.safe_load(file.read_bytes())
        return MLflowSettings(**config["diagnostics"]["log"].get("mlflow", {}))
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError) as cause:
        reason = "is missing" if isinstance(cause, FileNotFoundError) else "holds no config of a run"
        raise UserError(f"{folder} is no run: its config.yaml {reason}", where=str(file)) from cause


def _status(folder: Path) -> str:
    """Return how a run ended that kept no record: with its scores or pictures, or before them."""
    finished = (folder / "metrics.json").is_file() or (folder / "plots" / "loss.png").is_file()
    return "FINISHED" if finished else "KILLED"
