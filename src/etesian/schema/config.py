"""The whole config."""

from __future__ import annotations

from pydantic import SerializeAsAny

from etesian.schema.base import Section
from etesian.schema.data import DataSettings
from etesian.schema.dataloader import DataloaderSettings
from etesian.schema.diagnostics import DiagnosticsSettings
from etesian.schema.graph import GraphSettings
from etesian.schema.model import ModelSettings
from etesian.schema.system import SystemSettings
from etesian.schema.task import TaskSettings
from etesian.schema.training import TrainingSettings


class Config(Section):
    """One experiment, resolved and checked."""

    data: DataSettings
    dataloader: DataloaderSettings
    diagnostics: DiagnosticsSettings
    graph: GraphSettings
    model: SerializeAsAny[ModelSettings]
    system: SystemSettings
    task: TaskSettings
    training: TrainingSettings
