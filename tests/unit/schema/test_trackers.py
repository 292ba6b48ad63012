"""Sections ``diagnostics.log.mlflow`` and ``wandb``: what may stand there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from etesian.schema.diagnostics import MLflowSettings, WandbSettings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"enabled": True}, "tracking_uri=null names no server: .* offline: true"),
        ({"tracking_uri": "localhost:5000"}, "tracking_uri='localhost:5000' is no address of a server"),
        ({"tracking_uri": "sqlite:///runs.db"}, "is no address of a server: http://HOST:PORT"),
        ({"tracking_uri": "http://"}, "is no address of a server"),
        ({"tracking_uri": "http://host:port"}, "is no address of a server"),
        ({"tracking_uri": "http://[::1"}, "is no address of a server"),
        ({"tracking_uri": "https://me:secret@host"}, "would be written into config.yaml: export MLFLOW_TRACKING_"),
        ({"experiment_name": ""}, "empty text"),
        ({"experiment": "x"}, "Extra inputs"),
        ({"enabled": "yes"}, "valid boolean"),
    ],
)
def test_wrong_values_of_mlflow(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        MLflowSettings(**settings)


def test_right_values_of_mlflow() -> None:
    assert MLflowSettings(enabled=True, tracking_uri="https://host/mlflow/").tracking_uri == "https://host/mlflow"
    assert MLflowSettings(enabled=True, offline=True).tracking_uri is None
    assert MLflowSettings(tracking_uri="http://[::1]:5000").experiment_name == "etesian"


@pytest.mark.parametrize("settings", [{"project": ""}, {"tracking_uri": "http://host"}, {"offline": 1}])
def test_wrong_values_of_wandb(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WandbSettings(**settings)
