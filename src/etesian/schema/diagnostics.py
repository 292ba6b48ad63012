"""Section ``diagnostics``: what is logged, kept and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from etesian.schema.base import Section

DRAWN = 8
"""How many outputs are drawn where none is named."""
TRACED = 3
"""How many steps are traced where no number is given."""


class SaveFrequency(Section):
    """A checkpoint every ``save_frequency`` (null: never); the last ``num_models_saved`` are kept (-1: all)."""

    save_frequency: int | None = Field(default=None, ge=1)
    """Minutes, epochs or steps between two checkpoints."""
    num_models_saved: int = Field(default=0, ge=-1)
    """How many are kept."""


class CheckpointSettings(Section):
    """Checkpoints beside ``last.ckpt`` (every validation and every ``save_frequency``) and ``best.ckpt``."""

    every_n_minutes: SaveFrequency = SaveFrequency()
    """By the clock."""
    every_n_epochs: SaveFrequency = SaveFrequency()
    """By epochs."""
    every_n_train_steps: SaveFrequency = SaveFrequency()
    """By optimiser steps."""


class TensorBoardSettings(Section):
    """TensorBoard beside the CSV that is always written."""

    enabled: bool = False
    """Write TensorBoard's files; needs the extra ``tensorboard``."""


class MLflowSettings(Section):
    """A run on an MLflow server, beside the CSV that is always written."""

    enabled: bool = False
    """Log to MLflow; needs the extra ``mlflow`` unless ``offline``."""
    offline: bool = False
    """Talk to no server while the run goes on; ``anemoi-training mlflow sync RUN`` uploads it afterwards."""
    tracking_uri: str | None = None
    """Address of the server, such as ``http://localhost:5000``; user and password come from the environment."""
    experiment_name: str = "etesian"
    """Experiment that the run belongs to; made where the server has none of that name."""
    run_name: str | None = None
    """Name of the run on the server; null takes the run's own, ``training.run_id``."""

    @field_validator("tracking_uri")
    @classmethod
    def _is_an_address(cls, uri: str | None) -> str | None:
        return None if uri is None else checked_uri(uri, "diagnostics.log.mlflow.tracking_uri")

    @model_validator(mode="after")
    def _has_a_server(self) -> MLflowSettings:
        if self.enabled and not self.offline and self.tracking_uri is None:
            raise ValueError(
                "diagnostics.log.mlflow.tracking_uri=null names no server: give its address, such as"
                " http://localhost:5000, or write offline: true and upload the run later"
            )
        return self


def checked_uri(uri: str, where: str) -> str:
    """Return the address of a server without a slash at the end.

    Raises
    ------
    ValueError
        If it is none, or holds a password.
    """
    wrong = ValueError(f"{where}={uri!r} is no address of a server: http://HOST:PORT or https://HOST")
    try:
        parts = urlsplit(uri)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise wrong from None
    if not sound:
        raise wrong
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{where} holds a user or a password, which would be written into config.yaml: export"
            " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return uri.rstrip("/")


class WandbSettings(Section):
    """A run of Weights & Biases, beside the CSV that is always written."""

    enabled: bool = False
    """Log to Weights & Biases; needs the extra ``wandb``."""
    offline: bool = False
    """Write into the run folder alone; ``wandb sync`` uploads it afterwards."""
    project: str = "etesian"
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team; null takes the default of the account."""
    run_name: str | None = None
    """Name of the run there; null takes the run's own, ``training.run_id``."""


class LogSettings(Section):
    """Logging of metrics: one row every ``interval`` steps."""

    interval: int = Field(default=10, ge=1)
    """Steps between two rows."""
    variables: list[str] | Literal["all"] | None = None
    """Outputs whose part of the validation loss is logged, ``val_loss/NAME``; null none, ``all`` every one."""
    tensorboard: TensorBoardSettings = TensorBoardSettings()
    """TensorBoard."""
    mlflow: MLflowSettings = MLflowSettings()
    """MLflow."""
    wandb: WandbSettings = WandbSettings()
    """Weights & Biases."""

    @property
    def named(self) -> list[str]:
        """The variables that are named."""
        return list(dict.fromkeys(self.variables)) if isinstance(self.variables, list) else []

    def logged(self, outputs: Sequence[str]) -> list[str]:
        """Return the variables that are logged, of those that the model forecasts."""
        return list(outputs) if self.variables == "all" else self.named


class PlotSettings(Section):
    """Pictures at the end of the run."""

    enabled: bool = True
    """Draw pictures."""
    parameters: list[str] | Literal["all"] | None = None
    """Variables that are drawn; null draws the first 8 outputs, ``all`` every one."""
    sample_idx: int = Field(default=0, ge=0)
    """Sample of the test period that the maps show."""
    coastlines: bool = True
    """Draw the Earth's coastlines on maps."""

    @property
    def named(self) -> list[str]:
        """The variables that are named."""
        return self.parameters if isinstance(self.parameters, list) else []

    def drawn(self, outputs: Sequence[str]) -> list[str]:
        """Return the variables that are drawn, of those that the model forecasts."""
        if isinstance(self.parameters, list):
            return self.parameters
        return list(outputs if self.parameters == "all" else outputs[:DRAWN])


class ScoresSettings(Section):
    """The table of scores over the test period at the end of the run."""

    enabled: bool = True
    """Compute and print the table."""
    lead_times: int = Field(default=1, ge=1)
    """Steps that are rolled out and scored."""
    climatology: Literal["monthly", "daily", "none"] = "monthly"
    """Mean of the training period by calendar month or day of the year."""
    allow_large: bool = False
    """Compute the climatology even of a training period over 20 GB."""
    climatology_file: str | None = None
    """NetCDF to read the climatology from instead."""


class DebugSettings(Section):
    """For finding faults."""

    anomaly_detection: bool = False
    """Stop at the operation whose gradient is NaN; slow."""


class BenchmarkProfilerSettings(Section):
    """Where the time of a training step goes: ``simple`` times its parts, ``detailed`` traces a few steps as well."""

    mode: Literal["none", "simple", "detailed"] = "none"
    """What is measured."""
    warmup: int = Field(default=5, ge=0)
    """First optimiser steps of a process, which are left out: they compile and fill caches."""
    trace_steps: int | None = Field(default=None, ge=1, le=100)
    """With ``detailed``: optimiser steps that are traced after the warm-up; null traces 3."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off_is_none(cls, mode: object) -> object:
        if mode is False:
            raise ValueError("diagnostics.benchmark_profiler.mode=false: YAML reads a bare off as false; write none")
        return mode

    @model_validator(mode="after")
    def _only_a_trace_has_steps(self) -> BenchmarkProfilerSettings:
        if self.mode == "simple" and self.trace_steps is not None:
            raise ValueError(
                f"diagnostics.benchmark_profiler.trace_steps={self.trace_steps} does nothing with mode='simple':"
                " write null, or mode: detailed"
            )
        return self

    @property
    def traced(self) -> int:
        """Optimiser steps that are traced."""
        return (self.trace_steps or TRACED) if self.mode == "detailed" else 0

    @property
    def untimed(self) -> int:
        """First optimiser steps that are not timed: warm-up, and with a trace the tracer's own step and the traced."""
        return self.warmup + (self.traced + 1 if self.traced else 0)


class DiagnosticsSettings(Section):
    """Logging, checkpoints, pictures and scores."""

    enable_progress_bar: bool = True
    """Show progress in the terminal."""
    check_val_every_n_epoch: int = Field(default=1, ge=1)
    """Epochs from one validation to the next."""
    log: LogSettings = LogSettings()
    """Metrics."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""
    plot: PlotSettings = PlotSettings()
    """Pictures."""
    scores: ScoresSettings = ScoresSettings()
    """Scores."""
    debug: DebugSettings = DebugSettings()
    """Finding faults."""
    benchmark_profiler: BenchmarkProfilerSettings = BenchmarkProfilerSettings()
    """Where the time goes."""
