"""Names of the embedded datasets, and the store in the cache folder that a name stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etesian.data.embedded import ncep_monthly
from etesian.data.embedded.store_cache import make_once
from etesian.errors import UserError, did_you_mean

PREFIX = "embedded:"
"""A dataset whose name begins so comes with the package."""


@dataclass(frozen=True)
class EmbeddedDataset:
    """A data file of the package and how it becomes a store.

    Attributes
    ----------
    source : Path
        The file.
    sha256 : str
        Checksum of the file.
    version : int
        Counts the changes of `build` that change the store.
    build : callable
        ``build(source, target)`` writes the store.
    """

    source: Path
    sha256: str
    version: int
    build: Callable[[Path, Path], None]

    @property
    def fingerprint(self) -> str:
        """Identify the store that comes out."""
        return hashlib.sha256(f"{self.version}:{self.sha256}".encode()).hexdigest()[:16]


DATASETS = {
    "ncep-monthly-5deg": EmbeddedDataset(
        source=Path(__file__).parent / "ncep_t_sig995_monthly_5deg.nc",
        sha256="0e2af981a4701519b8f769a3813afe5f3118696005071e27a30da7bd2beb0e79",
        version=1,
        build=ncep_monthly.build,
    )
}
"""The embedded datasets by name."""


def embedded_store(name: str, cache_dir: Path, where: str) -> Path:
    """Return the store of an embedded dataset; make it at first use, or where it is broken or out of date.

    Parameters
    ----------
    name : str
        ``embedded:<name>``.
    cache_dir : Path
        The user's cache folder; the store lies in its folder ``datasets``.
    where : str
        Config key that holds the name, for the error.

    Raises
    ------
    UserError
        For an unknown name, and where the cache folder cannot be written.
    """
    short = name.removeprefix(PREFIX)
    if short not in DATASETS:
        raise UserError(
            f"there is no embedded dataset {name!r}",
            where=where,
            allowed=", ".join(PREFIX + known for known in DATASETS),
            mend=did_you_mean(name, [PREFIX + known for known in DATASETS]),
        )
    dataset = DATASETS[short]
    target = cache_dir / "datasets" / f"{short}-{dataset.fingerprint}.zarr"
    make_once(target, dataset.fingerprint, lambda folder: dataset.build(dataset.source, folder))
    return target
