"""The Lightning data module: windows of the three splits, in batches that do not depend on the number of processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from etesian.data.open import Splits
from etesian.data.sampler import GlobalBatchSampler
from etesian.data.threads import ThreadLoader
from etesian.data.windows import GridPart, WindowDataset, as_it_is
from etesian.schema.dataloader import DataloaderSettings
from etesian.schema.task import TaskSettings
from etesian.training.prefetch import Copies, DeviceBatches
from etesian.training.topology import Topology


class ForecastDataModule(pl.LightningDataModule):
    """Serves windows of input states and the states to forecast.

    Parameters
    ----------
    splits : Splits
        The opened periods.
    dataloader : DataloaderSettings
        Batches and worker processes; ``pin_memory`` null is taken as false.
    task : TaskSettings
        Length of the windows.
    step : int
        Dates of the dataset from one state to the next.
    imputed : frozenset of str
        Variables that may hold NaNs.
    seed : int
        Seed of the order of the training samples.
    copies : Copies, optional
        What copies the batches of training and validation to the device ahead, as ``dataloader.prefetch_to_device``
        asks.
    """

    def __init__(
        self,
        splits: Splits,
        dataloader: DataloaderSettings,
        task: TaskSettings,
        step: int,
        imputed: frozenset[str],
        seed: int,
        copies: Copies | None = None,
    ) -> None:
        super().__init__()
        self.splits = splits
        self.settings = dataloader
        self.task = task
        self.step = step
        self.imputed = imputed
        self.seed = seed
        self.copies = copies
        self.resume_at: tuple[int, int] | None = None
        """Epoch and batch at which the order of training samples goes on, once."""
        self.topology: Topology | None = None
        """The place of this process where some share a model; None: each has its own."""
        self.part: GridPart | None = None
        """The part of the grid that this process trains on; None: all. The test split is read whole."""

    def windows(self, split: str, rollout: int) -> WindowDataset:
        """Return the windows of a split for a rollout of that many steps."""
        dataset, part = getattr(self.splits, split), self.part
        if part is not None and split == "test":
            part = replace(part, points=slice(None))
        steps = self.task.multistep_input
        return WindowDataset(dataset, steps, rollout, self.step, self.imputed, split=split, part=part)

    def loader(
        self, split: str, rollout: int, rank: int, world_size: int, *, shuffle: bool
    ) -> DataLoader | ThreadLoader:
        """Return the batches of one process, or of all that share a model: they are then one rank of `world_size`.

        Training leaves out what does not fill the last global batch; validation and test fill it up with samples of
        weight zero, so that every sample counts once.
        """
        dataset = self.windows(split, rollout)
        size = getattr(self.settings.batch_size, split)
        if not shuffle:  # beyond the windows there are, a batch would hold nothing but padding
            size = min(size, -(-len(dataset) // world_size))
        sampler = GlobalBatchSampler(
            len(dataset),
            size,
            rank=rank,
            world_size=world_size,
            seed=self.seed,
            shuffle=shuffle,
            pad=not shuffle,
            limit=getattr(self.settings.limit_batches, split),
        )
        workers, ahead = getattr(self.settings.num_workers, split), self.settings.prefetch_factor
        pinned = bool(self.settings.pin_memory)
        if workers and self.settings.workers == "threads":
            return ThreadLoader(dataset, sampler, workers, ahead, pin_memory=pinned)
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=as_it_is,
            num_workers=workers,
            prefetch_factor=ahead if workers else None,
            persistent_workers=workers > 0,
            pin_memory=pinned,
            generator=torch.Generator(),  # keeps the workers' seeds out of the global random state
        )

    def train_dataloader(self) -> DataLoader | ThreadLoader | DeviceBatches:
        """Return the batches of the current epoch, from where a resumed run left off."""
        epoch, batch = self.resume_at or (self._trainer.current_epoch, 0)
        self.resume_at = None
        loader = self.loader("training", self.task.rollout.at_epoch(epoch), *self.place(), shuffle=True)
        sampler: Any = loader.batch_sampler
        sampler.set_epoch(epoch)
        sampler.start_at(batch)
        return self._ahead(loader)

    def val_dataloader(self) -> DataLoader | ThreadLoader | DeviceBatches:
        """Return the batches of the validation period."""
        return self._ahead(self.loader("validation", self.task.validation_rollout, *self.place(), shuffle=False))

    def place(self) -> tuple[int, int]:
        """Return which samples this process sees: rank and number of those that see samples of their own."""
        if self.topology is not None:
            return self.topology.data_rank, self.topology.data_size
        return self._trainer.global_rank, self._trainer.world_size

    def _ahead(self, loader: DataLoader | ThreadLoader) -> DataLoader | ThreadLoader | DeviceBatches:
        return loader if self.copies is None else DeviceBatches(loader, self.copies)

    @property
    def _trainer(self) -> pl.Trainer:
        assert self.trainer is not None
        return self.trainer
