"""The order of the samples: one for all processes, each takes its slice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from etesian.errors import UserError


class GlobalBatchSampler(Sampler[list[int]]):
    """Batches of sample numbers for one process of a group.

    The samples stand in one order, a permutation that depends on the seed and the epoch alone. It is cut into
    global batches of ``batch_size * world_size``, and each process takes its slice of every one. So whatever the
    number of processes, a global batch of one size holds the same samples; and nothing depends on worker processes.

    Parameters
    ----------
    num_samples : int
        Samples in all, at least one.
    batch_size : int
        Samples a process and batch.
    rank, world_size : int
        Which process of how many. Processes that share one model have the same rank here.
    seed : int
        Seed of the permutations, not negative.
    shuffle : bool
        Whether to permute; without, the samples come in their own order.
    pad : bool
        What happens to a last global batch that is incomplete. True: it is filled with padding, so that every process
        has as many batches, of one size; the entry ``-1 - i`` is padding that reads sample ``i`` (with no weight).
        False: it is dropped.
    limit : int, optional
        At most this many batches.

    Raises
    ------
    UserError
        Where nothing is left after dropping.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        *,
        shuffle: bool,
        pad: bool,
        limit: int | None = None,
    ) -> None:
        if num_samples < 1 or batch_size < 1 or not 0 <= rank < world_size or (limit is not None and limit < 1):
            raise ValueError(f"{num_samples=}, {batch_size=}, {rank=}, {world_size=}, {limit=}")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.rank = rank
        self.global_batch_size = batch_size * world_size
        self.seed = seed
        self.shuffle = shuffle
        batches = -(-num_samples // self.global_batch_size) if pad else num_samples // self.global_batch_size
        if batches == 0:
            raise UserError(
                f"{num_samples} samples do not fill one batch of {batch_size} samples x {world_size} processes",
                where="dataloader.batch_size.training",
                allowed=f"at most {num_samples // world_size} with {world_size} processes",
                mend="a smaller dataloader.batch_size, fewer processes, or a longer period",
            )
        self.num_batches = batches if limit is None else min(batches, limit)
        self.epoch = 0
        self._first = 0

    def __len__(self) -> int:
        """Return the batches of a whole epoch, the same for every process."""
        return self.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0, whose order comes next; another epoch starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self._first = epoch, 0

    def start_at(self, batch: int) -> None:
        """Let this epoch begin at a batch, counted from 0, as a run does that was stopped in its middle."""
        if not 0 <= batch <= self.num_batches:
            raise ValueError(f"batch {batch} of {self.num_batches}")
        self._first = batch

    def order(self) -> np.ndarray:
        """Return the samples of this epoch in their order, padded to whole global batches, int64."""
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        else:
            order = np.arange(self.num_samples)
        padding = max(0, self.num_batches * self.global_batch_size - self.num_samples)
        return np.concatenate([order, np.full(padding, -1 - order[0])])

    def __iter__(self) -> Iterator[list[int]]:
        """Return this process's slice of each global batch, from the batch to start at.

        The order is settled here, at once: the epoch that is set while a loader reads ahead counts for the next one.
        """
        order, batches = self.order(), range(self._first, self.num_batches)
        begins = [batch * self.global_batch_size + self.rank * self.batch_size for batch in batches]
        return iter([order[begin : begin + self.batch_size].tolist() for begin in begins])
