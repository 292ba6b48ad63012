"""Section ``task``: what is learnt from which steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from etesian.schema.base import Section


class RolloutSettings(Section):
    """Steps that are rolled out in training: ``start``, one more every ``epoch_increment`` epochs, at most ``maximum``.

    ``epoch_increment: 0`` keeps ``start``.
    """

    start: int = Field(default=1, ge=1)
    """Steps in the first epoch."""
    epoch_increment: int = Field(default=0, ge=0)
    """Epochs until one step more."""
    maximum: int = Field(default=1, ge=1)
    """Most steps."""

    @model_validator(mode="after")
    def _maximum_holds_start(self) -> RolloutSettings:
        if self.maximum < self.start:
            raise ValueError(f"task.rollout.maximum={self.maximum} is below task.rollout.start={self.start}")
        if self.epoch_increment == 0 and self.maximum > self.start:
            raise ValueError(
                f"task.rollout.maximum={self.maximum} is never reached with task.rollout.epoch_increment=0"
            )
        if self.epoch_increment > 0 and self.maximum == self.start:
            raise ValueError(
                f"task.rollout.epoch_increment={self.epoch_increment} changes nothing:"
                f" task.rollout.maximum={self.maximum} is task.rollout.start"
            )
        return self

    def at_epoch(self, epoch: int) -> int:
        """Return the number of steps rolled out in an epoch, counted from 0."""
        grown = epoch // self.epoch_increment if self.epoch_increment else 0
        return min(self.start + grown, self.maximum)


class TaskSettings(Section):
    """Forecasting: ``multistep_input`` states in, the next state out, rolled out."""

    kind: Literal["forecaster"] = "forecaster"
    """What is learnt."""
    multistep_input: int = Field(default=2, ge=1)
    """States in the input."""
    timestep: str | None = None
    """Lead time of one step, such as ``6h``, a multiple of ``data.frequency``; null: one step of the dataset."""
    rollout: RolloutSettings = RolloutSettings()
    """Steps rolled out in training."""
    validation_rollout: int = Field(default=1, ge=1)
    """Steps rolled out in validation."""
