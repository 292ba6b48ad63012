"""The door: every store that a split reads, found and checked before it is opened."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import zarr

from etesian.data.embedded.registry import PREFIX, embedded_store
from etesian.errors import UserError

ARRAYS = ("data", "dates", "latitudes", "longitudes", "mean", "stdev", "maximum", "minimum")
"""Arrays that a store must hold."""

_NAMED = (
    "dataset", "datasets", "join", "concat", "merge", "ensemble", "grids", "cutout", "complement", "source",
    "statistics",
)  # fmt: skip
"""Options of ``open_dataset`` whose text values are datasets."""

_MEND = "system.input.dataset=/path/to/dataset.zarr"


def find_stores(options: dict[str, Any], cache_dir: Path, where: str) -> dict[str, Any]:
    """Return the options of ``open_dataset`` with every embedded dataset turned into a path and every path checked.

    Parameters
    ----------
    options : dict
        The options, nested to any depth (``join: [{dataset: ...}, ...]``).
    cache_dir : Path
        The user's cache folder.
    where : str
        Config key of the options.

    Raises
    ------
    UserError
        For a store that is not there, is no store, or lacks what a dataset must hold.
    """
    return {
        key: _find(value, cache_dir, f"{where}.{key}", text=key in _NAMED) for key, value in options.items()
    }  # fmt: skip


def _find(value: Any, cache_dir: Path, where: str, text: bool) -> Any:
    if isinstance(value, dict):
        return find_stores(value, cache_dir, where)
    if isinstance(value, (list, tuple)):
        return [_find(item, cache_dir, f"{where}[{number}]", text) for number, item in enumerate(value)]
    if not (text and isinstance(value, str)):
        return value
    if value.startswith(PREFIX):
        return str(embedded_store(value, cache_dir, where))
    if "://" not in value and value.rstrip("/").endswith((".zarr", ".zip")):
        check_store(Path(value), where)
    elif "/" in value and "://" not in value:
        raise UserError(
            f"{value!r} is not the path of a dataset",
            where=where,
            allowed="a path that ends in .zarr or .zip, a URL, a name known to anemoi-datasets, embedded:<name>",
            mend=_MEND,
        )
    return value


def check_store(path: Path, where: str) -> None:
    """Check that a path is a zarr store (format 2, folder or zip) with all that a gridded dataset must hold."""
    if not path.exists():
        raise UserError(f"there is no dataset at {str(path)!r}", where=where, mend=_MEND)
    if (path / "zarr.json").exists():
        raise UserError(
            f"{str(path)!r} is a zarr store of format 3", where=where, allowed="zarr format 2",
            mend="write it again with zarr format 2",
        )  # fmt: skip
    try:
        root = zarr.open_group(str(path), mode="r")
        missing = [f"array '{name}'" for name in ARRAYS if name not in root]
        missing += [] if {"variables", "name_to_index"} & set(root.attrs) else ["attribute 'variables'"]
        layout = root.attrs.get("layout", "gridded")
        dimensions = 4 if "data" in missing or "data" not in root else root["data"].ndim
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zarr.errors._BaseZarrError) as cause:
        kind = "zip file with a zarr store" if path.suffix == ".zip" else "zarr store"
        raise UserError(f"{str(path)!r} is not a {kind}: {_reason(cause, path)}", where=where, mend=_MEND) from cause
    if missing:
        raise UserError(
            f"the dataset {str(path)!r} lacks {', '.join(missing)}",
            where=where,
            allowed=f"a dataset of anemoi-datasets: arrays {', '.join(ARRAYS)}; attribute variables",
            mend="finish or repeat the creation of the dataset (anemoi-datasets create)",
        )
    if layout != "gridded" or dimensions != 4:
        raise UserError(
            f"the dataset {str(path)!r} has layout {layout!r} and {dimensions} dimensions", where=where,
            allowed="layout 'gridded' with 4 dimensions: date, variable, ensemble member, grid point",
        )  # fmt: skip


def _reason(cause: Exception, path: Path) -> str:
    if path.is_file() and path.suffix != ".zip":
        return "it is a file, not a folder"
    if isinstance(cause, (zarr.errors.GroupNotFoundError, zarr.errors.PathNotFoundError)):
        return "it holds no zarr group"
    return str(cause) or type(cause).__name__
