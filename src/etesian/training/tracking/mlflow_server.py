"""An MLflow server, and what it answers in the words of a user error."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from etesian.errors import UserError
from etesian.schema.diagnostics import MLflowSettings

TIMEOUT = 10
"""Seconds in which a server has to answer; Etesian tries again by itself, so the library does not."""

_VARIABLES = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(TIMEOUT),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class NoAnswer(UserError):
    """The server does not answer; it may later."""


class Server:
    """An MLflow server.

    Parameters
    ----------
    uri : str
        Its address.
    where : str
        The key or option that names it, for errors.
    """

    def __init__(self, uri: str, where: str = "diagnostics.log.mlflow.tracking_uri") -> None:
        os.environ.update(_VARIABLES)  # read with each request
        from mlflow.tracking import MlflowClient

        self.uri, self.where = uri, where
        self.client = MlflowClient(uri)
        self.answered = time.monotonic()  # when it last did what it was asked to

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Turn what the library raises in the body into an error that names the server.

        Raises
        ------
        NoAnswer
            If it does not answer.
        UserError
            If it refuses.
        """
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as cause:
            raise self._error(cause) from cause
        self.answered = time.monotonic()

    def _error(self, cause: Exception) -> UserError:
        text = " ".join(str(cause).split())
        status = getattr(cause, "get_http_status_code", lambda: None)()
        told = re.search(r"failed with error code (\d+)", text)
        status = int(told[1]) if told else status
        beneath = cause.__cause__ if isinstance(cause.__cause__, OSError) else cause
        if status == 429 or status is None or status >= 500:
            mend = "start it, or name another"
            if self.where.startswith("diagnostics"):
                mend += "; diagnostics.log.mlflow.offline=true trains without one"
            return NoAnswer(
                f"the MLflow server {self.uri} does not answer: {_why(beneath)}", where=self.where, mend=mend
            )
        if status in (401, 403):
            mend = "export MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            return UserError(
                f"the MLflow server {self.uri} lets nobody in: {_short(text)}", where=self.where, mend=mend
            )
        if told and status == 404:
            return UserError(f"there is no MLflow server at {self.uri}: HTTP status 404", where=self.where)
        return UserError(f"the MLflow server {self.uri} refuses: {_short(text)}", where=self.where)

    def experiment(self, name: str, *, make: bool) -> str | None:
        """Return the id of an experiment; where there is none, make it or return None.

        Raises
        ------
        UserError
            If the server has deleted it, or does not answer.
        """
        with self.asked():
            found = self.client.get_experiment_by_name(name)
        if found is None and make:
            try:
                with self.asked():
                    return str(self.client.create_experiment(name))
            except NoAnswer:
                raise
            except UserError:  # another run made it meanwhile
                with self.asked():
                    found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found is None:
            return None
        if found.lifecycle_stage == "deleted":
            raise UserError(
                f"experiment {name!r} was deleted on the MLflow server {self.uri}",
                where="diagnostics.log.mlflow.experiment_name",
                mend="another name, or restore it: mlflow experiments restore",
            )
        return str(found.experiment_id)


def check_server(settings: MLflowSettings) -> None:
    """Check that the server of a config answers, and takes runs of its experiment; nothing is made.

    Raises
    ------
    UserError
        If not.
    """
    if not settings.offline:
        assert settings.tracking_uri is not None
        Server(settings.tracking_uri).experiment(settings.experiment_name, make=False)


def _why(cause: BaseException) -> str:
    """Return why a connection failed, without the names of classes that requests wraps around it."""
    text = " ".join(str(cause).split())
    if found := re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", text):
        return found[1]
    if "timed out" in text.lower() or "timeout" in type(cause).__name__.lower():
        return f"nothing within {TIMEOUT} s"
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
