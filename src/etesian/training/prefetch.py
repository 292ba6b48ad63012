"""Batches copied to the GPU one ahead: while a step is computed, the next batch is on its way.

The loader is asked for one batch more than is being worked on; which batch that is, the sampler settled when the epoch
began, and a checkpoint counts the batches that were worked on. So a run goes on at the same batch with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import DataLoader

from etesian.data.threads import ThreadLoader

Batch = dict[str, Any]


class Copies(Protocol):
    """What copies tensors to a device: :class:`etesian.runtime.device.BatchCopies`."""

    def begin(self, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to copy; what is returned gives the copies."""


class DeviceBatches:
    """The batches of a loader, on the device.

    Parameters
    ----------
    loader : DataLoader or ThreadLoader
        Gives dictionaries of tensors in page-locked memory.
    copies : Copies
        What copies.
    """

    def __init__(self, loader: DataLoader | ThreadLoader, copies: Copies) -> None:
        self.loader, self.copies = loader, copies
        self.batch_sampler, self.dataset = loader.batch_sampler, loader.dataset

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch now: the order of the samples is settled here, not when the first is asked for."""
        batches: Iterator[Batch] = iter(self.loader)  # type: ignore[arg-type]
        return self._one_ahead(batches)

    def _one_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        coming = self._begin(batches)
        while coming is not None:
            here, coming = coming, self._begin(batches)
            yield here()

    def _begin(self, batches: Iterator[Batch]) -> Callable[[], Batch] | None:
        """Begin to copy the next batch; None where there is none."""
        batch = next(batches, None)
        if batch is None:
            return None
        names = [name for name, value in batch.items() if isinstance(value, Tensor)]
        arrived = self.copies.begin([batch[name] for name in names])
        return lambda: batch | dict(zip(names, arrived(), strict=True))
