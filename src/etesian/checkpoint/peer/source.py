"""What a checkpoint of anemoi-training 0.17 holds, in plain containers and tensors."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anemoi.utils.checkpoints import has_metadata, load_metadata
from anemoi.utils.dates import frequency_to_timedelta
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.checkpoint.content import STATISTICS
from etesian.checkpoint.peer.unpickle import Stub, module_state, read_pickle
from etesian.data.variables import Variables
from etesian.errors import UserError

LAYOUT = "one of anemoi-training 0.17: a training checkpoint, or inference-*.ckpt beside it"


@dataclass(frozen=True)
class PeerCheckpoint:
    """A checkpoint of the peer.

    Attributes
    ----------
    path : Path
        The file.
    contains : str
        ``training`` or ``inference``.
    config : dict
        Its config, resolved.
    metadata : dict
        What it tells of itself.
    arrays : dict
        Its supporting arrays, by dataset.
    dataset : str
        Name of its dataset.
    variables : Variables
        By role, in the dataset's order.
    statistics : dict
        ``mean``, ``stdev``, ``maximum``, ``minimum``, (V,) float64 each.
    graph : HeteroData
        Its graph, as it is in the file.
    state : dict
        Parameters and buffers of its model interface.
    epoch, step : int
        How long it was trained.
    """

    path: Path
    contains: str
    config: dict[str, Any]
    metadata: dict[str, Any]
    arrays: dict[str, Any]
    dataset: str
    variables: Variables
    statistics: dict[str, np.ndarray]
    graph: HeteroData
    state: dict[str, Tensor]
    epoch: int
    step: int

    @property
    def timestep(self) -> datetime.timedelta:
        """Lead time of a step."""
        told = self.metadata["metadata_inference"][self.dataset].get("timesteps", {}).get("timestep")
        if told is None:
            raise UserError(f"{self.path} does not tell its timestep", where=str(self.path), allowed=LAYOUT)
        step: datetime.timedelta = frequency_to_timedelta(told)
        return step


def read_peer(path: Path) -> PeerCheckpoint:
    """Read a checkpoint of the peer; none of its code is run.

    Raises
    ------
    UserError
        If it is of another layout, or holds several datasets.
    """
    loaded = read_pickle(path)
    if isinstance(loaded, Stub) and loaded.path.startswith("anemoi.models.interface"):
        contains, held, state = "inference", loaded.state, module_state(loaded)
    elif isinstance(loaded, dict) and isinstance(loaded.get("hyper_parameters"), dict) and "state_dict" in loaded:
        contains, held = "training", loaded["hyper_parameters"]
        state = {k.removeprefix("model."): v for k, v in loaded["state_dict"].items() if k.startswith("model.")}
    else:
        found = loaded.path if isinstance(loaded, Stub) else type(loaded).__name__
        if isinstance(loaded, dict) and "etesian" in loaded:
            found = "checkpoint of this package, which needs no import"
        raise UserError(f"{path} holds no model of anemoi-models: a {found}", where=str(path), allowed=LAYOUT)
    if not has_metadata(str(path)):
        raise UserError(f"{path} holds no metadata of Anemoi, and so no config", where=str(path), allowed=LAYOUT)
    metadata, arrays = load_metadata(str(path), supporting_arrays=True)
    _check_parts(path, held, metadata)
    indices = held["data_indices"]
    if len(indices) != 1:
        raise UserError(f"{path} has the datasets {', '.join(indices)}", where=str(path), allowed="one dataset")
    ((dataset, index),) = indices.items()
    counters = loaded if isinstance(loaded, dict) else _counters(metadata)
    return PeerCheckpoint(
        path, contains, metadata["config"], metadata, arrays, dataset, _variables(path, index),
        _statistics(path, held["statistics"][dataset]), held["graph_data"], state, int(counters["epoch"]),
        int(counters["global_step"]),
    )  # fmt: skip


def _check_parts(path: Path, held: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    wanted = {"data_indices": dict, "statistics": dict, "graph_data": HeteroData}
    faults = [name for name, kind in wanted.items() if not isinstance(held.get(name), kind)]
    faults += [f"metadata.{name}" for name in ("config", "metadata_inference", "dataset") if not metadata.get(name)]
    if faults:
        raise UserError(f"{path} lacks {', '.join(faults)}", where=str(path), allowed=LAYOUT)


def _counters(metadata: Mapping[str, Any]) -> dict[str, int]:
    told = metadata.get("training") or {}
    return {"epoch": told.get("current_epoch", 0), "global_step": told.get("global_step", 0)}


def _variables(path: Path, index: Any) -> Variables:
    told = index.state if isinstance(index, Stub) else {}
    if not isinstance(told.get("name_to_index"), dict):
        raise UserError(f"{path} does not tell its variables", where=str(path), allowed=LAYOUT)
    if told.get("target"):
        what = f"variables that are targets only have no counterpart here: {', '.join(told['target'])}"
        raise UserError(what, where=str(path), allowed="forcing, prognostic and diagnostic variables")
    names = sorted(told["name_to_index"], key=told["name_to_index"].__getitem__)
    return Variables(tuple(names), tuple(told.get("forcing") or ()), tuple(told.get("diagnostic") or ()))


def _statistics(path: Path, statistics: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if missing := [name for name in STATISTICS if not isinstance(statistics.get(name), np.ndarray)]:
        raise UserError(f"{path} lacks the statistics {', '.join(missing)}", where=str(path), allowed=LAYOUT)
    return {name: np.asarray(statistics[name], dtype=np.float64) for name in STATISTICS}
