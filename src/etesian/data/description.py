"""What a checkpoint tells of the data that trained it: enough to run the model on other data, and to find the data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from etesian.data.period import Spacing, spacing_of


def describe_dataset(dataset: Any, stride: int) -> dict[str, Any]:
    """Describe a dataset that ``anemoi.datasets.open_dataset`` returned.

    Parameters
    ----------
    dataset : GriddedDataset
        The training dataset.
    stride : int
        Dates of the dataset in one step of the model.

    Returns
    -------
    dict
        JSON types only: ``metadata`` (as anemoi-datasets tells it: arguments of ``open_dataset``, paths, attributes,
        shape, variables with units), ``first`` and ``last`` date, ``dates`` (their number), ``step`` (``months`` and
        ``seconds``).
    """
    spacing = spacing_of(dataset.dates, "dataloader.training") or Spacing()
    return {
        "metadata": json.loads(json.dumps(dataset.metadata(), default=str)),
        "first": _text(dataset.dates[0]),
        "last": _text(dataset.dates[-1]),
        "dates": len(dataset.dates),
        "step": {"months": spacing.months * stride, "seconds": spacing.seconds * stride},
    }


def coordinates_of(dataset: Any) -> dict[str, torch.Tensor]:
    """Return ``latitudes`` and ``longitudes`` of a dataset, degrees, (G,) float64 each."""
    return {
        name: torch.as_tensor(np.array(getattr(dataset, name), dtype=np.float64))
        for name in ("latitudes", "longitudes")
    }


def step_of(description: Mapping[str, Any]) -> Spacing:
    """Return the lead time of one step of the model, which :func:`describe_dataset` wrote down."""
    return Spacing(**description["step"])


def units_of(dataset: Any) -> dict[str, str]:
    """Return the units of the variables whose metadata tell."""
    return units_in(dataset.variables_metadata)


def units_in(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the units in ``variables_metadata``, of the variables where they are told."""
    return {name: str(entry["units"]) for name, entry in metadata.items() if entry.get("units")}


def _text(date: np.datetime64) -> str:
    return str(date.astype("datetime64[s]"))
