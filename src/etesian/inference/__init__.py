"""How a trained model is run and measured: forecasts, climatology, references, scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etesian.inference.forecaster import Forecaster


def load(folder: str | Path) -> Forecaster:
    """Return the forecaster of a folder such as ``checkpoints/inference-last``; nothing is unpickled.

    See :func:`etesian.inference.safe.read_forecaster`, which raises what this does.
    """
    from etesian.inference.safe import read_forecaster  # here, as a pickled forecaster imports this package first

    return read_forecaster(Path(folder))
