"""What losses and scalers may look at when they are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import HeteroData

from etesian.data.gridded import GriddedDataset
from etesian.data.normalizer import Normalizer
from etesian.data.open import Splits
from etesian.data.period import timestep_stride
from etesian.data.variables import Variables
from etesian.schema.config import Config


@dataclass(frozen=True)
class LossContext:
    """A config, its data and, once there is one, its graph.

    Attributes
    ----------
    config : Config
        The config.
    variables : Variables
        Those of the datasets.
    splits : Splits
        The opened datasets.
    graph : HeteroData, optional
        The graph; None at the door, where what reads it is not looked at.
    """

    config: Config
    variables: Variables
    splits: Splits
    graph: HeteroData | None = None

    @property
    def data(self) -> GriddedDataset:
        """The training period's dataset."""
        return self.splits.training

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, (V_out,)."""
        return self.variables.output

    @property
    def rollouts(self) -> list[int]:
        """Every number of steps that training or validation may roll out, in order."""
        task = self.config.task
        return sorted({*range(task.rollout.start, task.rollout.maximum + 1), task.validation_rollout})

    @property
    def imputed(self) -> list[str]:
        """Outputs that may hold NaNs."""
        imputer = self.config.data.processors.imputer
        return [name for name in self.outputs if name in imputer.mean or name in imputer.constant]

    @cached_property
    def parameters(self) -> dict[str, tuple[str, float | None]]:
        """Parameter and pressure level, hPa or None, of each output.

        They are those of the dataset's metadata; where a variable has none there, ``t_850`` is ``t`` at 850 hPa.
        """
        metadata: Any = self.data.variables_metadata
        return {name: _parameter(name, metadata.get(name, {}).get("mars")) for name in self.outputs}

    @property
    def scale(self) -> NDArray[np.float64]:
        """Normalised units of one physical unit, of each output (V_out,)."""
        normalizer = Normalizer(self.variables, self.data.statistics, self.config.data.processors.normalizer)
        return normalizer.scale[self.variables.data_output].double().numpy()

    def tendency_stdev(self) -> NDArray[np.float64]:
        """Return the standard deviation (V,) of the change of each variable in one step, physical units.

        Raises
        ------
        LookupError
            If the dataset does not have it.
        """
        data: Any = self.data
        stride = timestep_stride(data.dates, self.config.task.timestep)
        try:
            statistics = data.statistics_tendencies(None if stride == 1 else stride * data.frequency)
            return np.asarray(statistics["stdev"], dtype=np.float64)
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            raise LookupError(str(error)) from error


def members(splits: Splits) -> Sequence[int]:
    """Return the ensemble members of the training and the validation period's data."""
    return splits.training.shape[2], splits.validation.shape[2]


def _parameter(name: str, mars: dict[str, Any] | None) -> tuple[str, float | None]:
    if mars is None:
        found = re.fullmatch(r"(.+)_([0-9]+)", name)
        return (found[1], float(found[2])) if found else (name, None)
    level = mars.get("levelist") if mars.get("levtype") == "pl" else None
    return str(mars.get("param", name)), None if level is None else float(level)
