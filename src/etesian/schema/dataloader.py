"""Section ``dataloader``: the periods and the batches."""

from __future__ import annotations

import datetime
from typing import Any

from pydantic import Field, field_validator

from etesian.schema.base import Section


class SplitInts(Section):
    """A whole number for each split."""

    training: int
    validation: int
    test: int


class NumWorkers(SplitInts):
    """Worker processes a split; 0 reads in the training process."""

    training: int = Field(default=0, ge=0)
    validation: int = Field(default=0, ge=0)
    test: int = Field(default=0, ge=0)


class BatchSize(SplitInts):
    """Samples a batch and process, for each split."""

    training: int = Field(ge=1)
    validation: int = Field(ge=1)
    test: int = Field(ge=1)


class LimitBatches(Section):
    """At most this many batches a process and epoch; null takes all."""

    training: int | None = Field(default=None, ge=1)
    validation: int | None = Field(default=None, ge=1)
    test: int | None = Field(default=None, ge=1)


class SplitSettings(Section):
    """One split: options of ``anemoi.datasets.open_dataset`` and the period, both ends included."""

    dataset_config: dict[str, Any]
    start: str | int | None = None
    end: str | int | None = None

    @field_validator("start", "end", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Accept what some YAML readers make of ``1979-01-01``."""
        return value.isoformat() if isinstance(value, datetime.date) else value


class DataloaderSettings(Section):
    """Periods, batches and worker processes."""

    num_workers: NumWorkers = NumWorkers()
    batch_size: BatchSize
    limit_batches: LimitBatches = LimitBatches()
    prefetch_factor: int = Field(default=2, ge=1)
    pin_memory: bool = False
    training: SplitSettings
    validation: SplitSettings
    test: SplitSettings
