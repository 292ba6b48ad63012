"""What this package uses of a dataset that ``anemoi.datasets.open_dataset`` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class GriddedDataset(Protocol):
    """Fields (T, V, E, G): dates, variables, ensemble members, grid points; physical units."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes (T, V, E, G)."""

    @property
    def dates(self) -> NDArray[np.datetime64]:
        """Dates (T,)."""

    @property
    def missing(self) -> set[int]:
        """Indices of the dates without fields."""

    @property
    def variables(self) -> Sequence[str]:
        """Names, V of them."""

    @property
    def variables_metadata(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each variable."""

    @property
    def latitudes(self) -> NDArray[np.float64]:
        """Degrees, (G,)."""

    @property
    def longitudes(self) -> NDArray[np.float64]:
        """Degrees, (G,)."""

    @property
    def statistics(self) -> Mapping[str, NDArray[np.float64]]:
        """``mean``, ``stdev``, ``maximum``, ``minimum``, (V,) each."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> NDArray[Any]: ...
