"""Batches read by threads of the training process: nothing is copied from one process to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from etesian.data.sampler import GlobalBatchSampler
from etesian.data.windows import Batch, WindowDataset


class ThreadLoader:
    """The batches of a sampler, in its order, read ahead by threads.

    Reading and decompressing a chunk do not hold Python's lock, so that threads do them side by side.

    Parameters
    ----------
    dataset : WindowDataset
        The windows.
    batch_sampler : GlobalBatchSampler
        Which windows, in which order.
    num_workers : int
        Threads, at least one.
    prefetch_factor : int
        Batches that each thread reads ahead.
    pin_memory : bool
        Whether the batches go into page-locked memory.
    """

    def __init__(
        self,
        dataset: WindowDataset,
        batch_sampler: GlobalBatchSampler,
        num_workers: int,
        prefetch_factor: int,
        *,
        pin_memory: bool = False,
    ) -> None:
        if num_workers < 1 or prefetch_factor < 1:
            raise ValueError(f"{num_workers=}, {prefetch_factor=}")
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of an epoch; its order is settled here, at once, as in PyTorch's ``DataLoader``.

        Raises
        ------
        SampleError
            As :class:`WindowDataset`, at the batch that holds the sample.
        """
        return self._batches(iter(self.batch_sampler))

    def _batches(self, order: Iterator[list[int]]) -> Iterator[Batch]:
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="loader")
        try:
            ahead: deque[Future[Batch]] = deque()
            for indices in islice(order, self.num_workers * self.prefetch_factor):
                ahead.append(pool.submit(self._read, indices))
            while ahead:
                batch = ahead.popleft().result()
                for indices in islice(order, 1):
                    ahead.append(pool.submit(self._read, indices))
                yield batch
        finally:  # also where the epoch is left in its middle
            pool.shutdown(cancel_futures=True)

    def _read(self, indices: Sequence[int]) -> Batch:
        batch = self.dataset.__getitems__(indices)
        if self.pin_memory:
            batch = {"x": batch["x"].pin_memory(), "index": batch["index"].pin_memory(),
                     "weight": batch["weight"].pin_memory()}  # fmt: skip
        return batch
