"""Windows of consecutive states: what a sample is."""

from __future__ import annotations

import os
import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from etesian.data.gridded import GriddedDataset
from etesian.errors import Problem, UserError, shell_word

_LENGTH = {"validation": "task.validation_rollout", "test": "diagnostics.scores.lead_times"}
"""Config key of the states that follow the input, where it is not that of training."""


class Sample(TypedDict):
    """One window."""

    x: Tensor
    """States (T, E, G, V), float32, physical units: date, ensemble member, grid point, variable. In memory the grid
    points stand side by side, as in the store: a view that costs nothing here and is turned round on the device."""
    index: int
    """Which window it is, counted from 0."""
    weight: float
    """1; 0 for padding."""


class Batch(TypedDict):
    """Windows side by side."""

    x: Tensor
    """States (B, T, E, G, V), as those of a :class:`Sample`; in memory (B, T, V, E, G)."""
    index: Tensor
    """Which windows they are (B,), int64."""
    weight: Tensor
    """1; 0 for padding (B,), float64."""


def as_it_is(batch: Any) -> Any:
    """Return a :class:`Batch`: for ``DataLoader``, which would put samples together."""
    return batch


class SampleError(UserError):
    """A sample that cannot be used. It arrives whole from a worker process.

    PyTorch builds a worker's exception anew in the main process, from its class and the text of its traceback.
    The traceback ends with what :func:`etesian.errors.format_error` printed, which is read back here.
    """

    def __init__(
        self, what: str, *, where: str | None = None, allowed: str | None = None, mend: str | None = None
    ) -> None:
        _, seen, tail = what.rpartition(f"{type(self).__name__}: error: ")
        if seen:
            what, *lines = tail.strip().split("\n")
            parts = {label: text for label, _, text in (line.strip().partition(":") for line in lines)}
            where, allowed, mend = (parts.get(label, "").strip() or None for label in ("where", "allowed", "mend"))
        super().__init__(what, where=where, allowed=allowed, mend=mend)


@dataclass(frozen=True)
class GridPart:
    """The part of the grid that one of several processes reads.

    Attributes
    ----------
    points : slice
        Its grid points.
    checks : bool
        Whether it looks for NaNs, in the whole grid: one of the processes does, so that they are told of once.
    """

    points: slice
    checks: bool


class WindowDataset(Dataset[Sample]):
    """Every run of ``multistep_input + rollout`` states of a dataset that holds no missing date.

    Parameters
    ----------
    dataset : GriddedDataset
        Fields (dates, variables, ensemble members, grid points).
    multistep_input : int
        States that go into the model.
    rollout : int
        States that follow them.
    step : int
        Dates from one state to the next (see :func:`etesian.data.period.timestep_stride`).
    imputed_variables : collection of str
        Variables that may hold NaNs.
    split : str
        Name of the split, for the errors.
    part : GridPart, optional
        The part of the grid to give; without, all of it.

    Attributes
    ----------
    length : int
        T, states a window.
    starts : array
        Position of each window's first date in the dataset.
    skipped : int
        Windows left out because a date is missing in them.

    Raises
    ------
    UserError
        Where no window is left.
    """

    def __init__(
        self,
        dataset: GriddedDataset,
        multistep_input: int,
        rollout: int,
        step: int = 1,
        imputed_variables: Collection[str] = (),
        split: str = "training",
        part: GridPart | None = None,
    ) -> None:
        if multistep_input < 1 or rollout < 1 or step < 1:
            raise ValueError(f"{multistep_input=}, {rollout=}, {step=}")
        self.dataset = dataset
        self.length = multistep_input + rollout
        self.step = step
        self.split = split
        self.part = part
        self.starts, self.skipped = _starts(len(dataset), dataset.missing, self.length, step)
        self._checked = [position for position, name in enumerate(dataset.variables) if name not in imputed_variables]
        self._process = os.getpid()
        if self.starts.size == 0:
            raise UserError(
                f"the {split} split holds no window: one needs {self.span} dates in a row ({multistep_input} states "
                f"in, {rollout} out, stride {step}), there are {len(dataset)} dates, {len(dataset.missing)} missing",
                where=f"dataloader.{split}.start, dataloader.{split}.end",
                mend=f"a longer period, or smaller task.multistep_input or {_LENGTH.get(split, 'task.rollout')}",
            )

    @property
    def span(self) -> int:
        """Dates from the first to the last of a window, both included."""
        return (self.length - 1) * self.step + 1

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self.starts.size)

    def __getitem__(self, index: int) -> Sample:
        """Read a window; ``-1 - i`` is padding that reads window ``i`` with weight 0.

        Raises
        ------
        SampleError
            For a NaN in a variable that has no imputer, and where the store cannot be read.
        """
        window = index if index >= 0 else -1 - index
        states = torch.from_numpy(self._states(window)).permute(0, 2, 3, 1)  # [T, E, G, V], a view
        return {"x": states, "index": window, "weight": float(index >= 0)}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a batch of windows, as :meth:`__getitem__` reads one; a date that several windows hold is read once.

        Raises
        ------
        SampleError
            As :meth:`__getitem__`.
        """
        windows = [index if index >= 0 else -1 - index for index in indices]
        alone = len(windows) == 1  # decompressed where it stays, so nothing is copied
        x = torch.from_numpy(self._states(windows[0]))[None] if alone else self._read_together(windows)
        return {
            "x": x.permute(0, 1, 3, 4, 2),  # [B, T, E, G, V], a view
            "index": torch.tensor(windows),
            "weight": torch.tensor([float(index >= 0) for index in indices], dtype=torch.float64),
        }

    def dates(self, index: int) -> NDArray[np.datetime64]:
        """Return the dates (T,) of a window."""
        return self.dataset.dates[self._slice(index if index >= 0 else -1 - index)]

    def _slice(self, window: int) -> slice:
        start = int(self.starts[window])
        return slice(start, start + self.span, self.step)

    def _states(self, window: int) -> NDArray[np.float32]:
        """Return the states [T, V, E, G] of a window."""
        if window >= len(self):
            raise IndexError(f"window {window} of {len(self)}")
        return self._read(self._slice(window))

    def _read_together(self, windows: Sequence[int]) -> Tensor:
        """Return the states [B, T, V, E, G] of some windows."""
        dates = [date for window in windows for date in range(*self._slice(window).indices(len(self.dataset)))]
        states: dict[int, Tensor] = {}
        for date in dates:
            if date not in states:
                states[date] = torch.from_numpy(self._read(slice(date, date + 1))[0])  # [V, E, G]
        stacked = default_collate([states[date] for date in dates])  # in a worker process, into shared memory
        return stacked.unflatten(0, (len(windows), self.length))

    def _read(self, dates: slice) -> NDArray[np.float32]:
        """Return the states [T, V, E, G] at some dates, checked, of the part of the grid that is asked for."""
        if os.getpid() != self._process:  # a forked worker: an open zip file's position would be shared
            self.dataset = pickle.loads(pickle.dumps(self.dataset))
            self._process = os.getpid()
        try:
            x = self.dataset[dates]
        except Exception as cause:  # whatever a damaged store or a lost connection raises
            found = self.dataset.dates[dates]
            period = f"at {found[0]}" if len(found) == 1 else f"from {found[0]} to {found[-1]}"
            raise SampleError(
                f"the {self.split} data {period} cannot be read: {type(cause).__name__} {cause}".replace("\n", " "),
                where=f"dataloader.{self.split}.dataset_config",
            ) from cause
        if self.part is None or self.part.checks:
            self._check_nans(x, dates)
        return np.ascontiguousarray(x if self.part is None else x[..., self.part.points], dtype=np.float32)

    def _check_nans(self, x: NDArray[np.float32], dates: slice) -> None:
        sums = x.sum(axis=(2, 3))  # [T, V]: not finite where a point is not, and no array of the field's size is made
        suspect = ~np.isfinite(sums[:, self._checked])
        if not suspect.any():
            return
        for state, column in zip(*np.nonzero(suspect), strict=True):
            variable = self._checked[column]
            count = int(np.isnan(x[state, variable]).sum())
            if count:
                problem = nan_problem(
                    self.dataset.variables[variable], str(self.dataset.dates[dates][state]), count, self.split
                )
                raise SampleError(problem.what, where=problem.where, mend=problem.mend)
            if count := int(np.isinf(x[state, variable]).sum()):
                raise SampleError(
                    f"variable {self.dataset.variables[variable]!r} holds {count} infinite values at "
                    f"{self.dataset.dates[dates][state]} ({self.split})",
                    where=f"dataloader.{self.split}.dataset_config",
                    mend="correct the dataset",
                )


def nan_problem(variable: str, date: str, count: int | None, split: str) -> Problem:
    """Describe NaNs in a variable that has no imputer; a count of None is not known."""
    key = "data.processors.imputer"
    number = "NaNs" if count is None else "1 NaN" if count == 1 else f"{count} NaNs"
    return Problem(
        f"variable {variable!r} holds {number} at {date} ({split}), and has no imputer",
        where=key,
        mend=f"{shell_word(f'{key}.mean=[{variable}]')} or +{key}.constant.{variable}=NUMBER",
    )


def _starts(dates: int, missing: Collection[int], length: int, step: int) -> tuple[NDArray[np.int64], int]:
    """Return the first positions of the windows without a missing date, and how many have one."""
    candidates = max(0, dates - (length - 1) * step)
    if candidates == 0:
        return np.empty(0, dtype=np.int64), 0
    there = np.ones(dates, dtype=bool)
    there[list(missing)] = False
    whole = np.ones(candidates, dtype=bool)
    for state in range(length):
        whole &= there[state * step : state * step + candidates]
    starts = np.flatnonzero(whole)
    return starts, candidates - int(starts.size)
