"""Initial states before a period: what lets validation and test forecast every date of theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from etesian.data.gridded import GriddedDataset
from etesian.data.open import SplitName, Splits, open_split
from etesian.data.period import spacing_of
from etesian.schema.dataloader import DataloaderSettings, SplitSettings


def with_initial_states(splits: Splits, dataloader: DataloaderSettings, cache_dir: Path, dates: int) -> Splits:
    """Let validation and test begin earlier, so that the first date of their period is forecast too.

    The states before a period only start forecasts; none is a target there, so the periods stay apart.

    Parameters
    ----------
    splits : Splits
        The splits, each opened for its own period.
    dataloader : DataloaderSettings
        Section ``dataloader``.
    cache_dir : Path
        The user's cache folder.
    dates : int
        Dates that lie between the first initial state and the first state that is forecast. Where the data do not
        reach back as far, as many as there are.
    """
    return Splits(
        training=splits.training,
        validation=earlier("validation", splits.validation, dataloader.validation, cache_dir, dates),
        test=earlier("test", splits.test, dataloader.test, cache_dir, dates),
    )


def earlier(
    name: SplitName, dataset: GriddedDataset, split: SplitSettings, cache_dir: Path, dates: int
) -> GriddedDataset:
    """Return the dataset of one split, begun earlier; see :func:`with_initial_states`."""
    spacing = spacing_of(dataset.dates, f"dataloader.{name}")
    if spacing is None:
        return dataset
    whole = open_split(name, _period(split, None, _text(dataset.dates[-1])), cache_dir)
    for back in range(min(dates, len(whole.dates)), 0, -1):
        start = spacing.after(dataset.dates[0], -back)
        if start >= whole.dates[0]:
            return open_split(name, _period(split, _text(start), _text(dataset.dates[-1])), cache_dir)
    return dataset


def _period(split: SplitSettings, start: str | None, end: str) -> SplitSettings:
    options = {option: value for option, value in split.dataset_config.items() if option not in ("start", "end")}
    return split.model_copy(update={"dataset_config": options, "start": start, "end": end})


def _text(date: np.datetime64) -> str:
    return str(date.astype("datetime64[s]"))
