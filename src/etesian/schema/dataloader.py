"""Section ``dataloader``: the periods and the batches."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from etesian.schema.base import Section


class SplitInts(Section):
    """A whole number for each split."""

    training: int
    """Training split."""
    validation: int
    """Validation split."""
    test: int
    """Test split."""


class NumWorkers(SplitInts):
    """Workers a split, processes or threads as ``workers`` says; 0 reads between the steps of the training."""

    training: int = Field(default=0, ge=0, le=1024)
    """Training split."""
    validation: int = Field(default=0, ge=0, le=1024)
    """Validation split."""
    test: int = Field(default=0, ge=0, le=1024)
    """Test split."""


class BatchSize(SplitInts):
    """Samples a batch for each split, of each process, or of all processes that share a model."""

    training: int = Field(ge=1)
    """Training split."""
    validation: int = Field(ge=1)
    """Validation split."""
    test: int = Field(ge=1)
    """Test split."""


class LimitBatches(Section):
    """At most this many batches a process and epoch; null takes all."""

    training: int | None = Field(default=None, ge=1)
    """Training split."""
    validation: int | None = Field(default=None, ge=1)
    """Validation split."""
    test: int | None = Field(default=None, ge=1)
    """Test split."""


class SplitSettings(Section):
    """One split: options of ``anemoi.datasets.open_dataset`` and the period, both ends included."""

    dataset_config: dict[str, Any]
    """Arguments of ``open_dataset``: ``dataset``, ``select``, ``frequency`` and so on."""
    start: str | int | None = None
    """First date, such as ``1948-01`` or ``2005-12-31T18``; null takes the dataset's first."""
    end: str | int | None = None
    """Last date, included; null takes the dataset's last."""

    @field_validator("start", "end", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Accept what some YAML readers make of ``1979-01-01``."""
        return value.isoformat() if isinstance(value, datetime.date) else value


class DataloaderSettings(Section):
    """Periods, batches and workers."""

    num_workers: NumWorkers = NumWorkers()
    """Number of workers."""
    workers: Literal["processes", "threads"] = "processes"
    """What reads ahead: ``processes``, or ``threads`` of the training process, which copy no batch between processes
    and need no shared memory; they share Python's lock with the training step."""
    batch_size: BatchSize
    """Samples a batch."""
    limit_batches: LimitBatches = LimitBatches()
    """Shorter epochs."""
    prefetch_factor: int = Field(default=2, ge=1, le=1024)
    """Batches that each worker reads ahead."""
    pin_memory: bool | None = None
    """Page-locked memory, for quicker copies to a GPU; null: with a GPU only."""
    prefetch_to_device: bool = False
    """Copy each batch to the GPU while the step before it is computed."""
    training: SplitSettings
    """Period of the training."""
    validation: SplitSettings
    """Period that chooses the best weights."""
    test: SplitSettings
    """Period of the scores and pictures."""
