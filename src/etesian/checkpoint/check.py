"""Whether what a checkpoint tells of its experiment is whole: a damaged file is told of before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from etesian.checkpoint.content import STATISTICS, variables_of
from etesian.errors import UserError
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import COMPONENTS

EARLIER = "start from an earlier checkpoint, such as another one in the same folder"
"""What mends a damaged checkpoint."""

_RECORD = {"slot": str, "component": str, "target": str, "arguments": dict, "family": str, "library": str,
           "version": str, "origin": str, "note": str, "constants": dict}  # fmt: skip


def check_content(path: Path, content: Mapping[str, Any], counters: Mapping[str, Any], *, exported: bool) -> None:
    """Check the description of an experiment.

    Parameters
    ----------
    path : Path
        The checkpoint, for messages.
    content : mapping
        Its key ``etesian``, or what an exported forecaster tells of itself.
    counters : mapping
        What holds ``epoch``.
    exported : bool
        Whether it is of an exported forecaster, which has no statistics and of the graph numbers only.

    Raises
    ------
    UserError
        With the first things that are missing, left over or of another type.
    """
    faults = [] if isinstance(content.get("version"), str) else ["version is no text"]
    faults += [] if isinstance(counters.get("epoch"), int) else ["epoch is no number"]
    faults += _config_faults(content.get("config"))
    faults += _kernel_faults(content.get("kernels"))
    names, found = _variable_faults(content)
    faults += [*found, *_data_faults(content)]
    if exported:
        faults += _summary_faults(content.get("graph"))
    else:
        faults += _statistics_faults(content.get("statistics"), names)
        faults += _graph_faults(content.get("graph"))
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise UserError(f"{path} is damaged or incomplete: {shown}", where=str(path), mend=EARLIER)


def _config_faults(config: Any) -> list[str]:
    if not isinstance(config, dict):
        return ["config is missing"]
    keys = [("training", "precision"), ("model", "kind"), ("model", "num_channels"), ("model", "layer_kernels"),
            ("model", "processor", "num_layers"), ("task", "multistep_input"), ("task", "timestep"),
            *(("model", component, "layer_kernels") for component in COMPONENTS)]  # fmt: skip
    faults = [f"config.{'.'.join(key)} is missing" for key in keys if not _has(config, key)]
    mappings = [("model", "layer_kernels"), *(key for key in keys if key[0] == "model" and key[1] in COMPONENTS)]
    for key in mappings:
        if key[-1] == "layer_kernels" and _has(config, key) and not _is_mapping_of_mappings(_at(config, key)):
            faults.append(f"config.{'.'.join(key)} is no mapping of slots")
    return faults


def _has(tree: Any, key: tuple[str, ...]) -> bool:
    for name in key:
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def _at(tree: Any, key: tuple[str, ...]) -> Any:
    for name in key:
        tree = tree[name]
    return tree


def _is_mapping_of_mappings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, dict) for entry in value.values())


def _kernel_faults(records: Any) -> list[str]:
    if not isinstance(records, list) or not records:
        return ["kernels are missing"]
    known = {field.name for field in fields(KernelRecord)}
    needed = {f.name for f in fields(KernelRecord) if f.default is MISSING and f.default_factory is MISSING}
    faults = []
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            faults.append(f"kernels[{number}] is no record")
            continue
        faults += [f"kernels[{number}] has an unknown key {key!r}" for key in record if key not in known]
        faults += [f"kernels[{number}] lacks {key}" for key in sorted(needed - set(record))]
        faults += [
            f"kernels[{number}].{key} is {record[key]!r}"
            for key, kind in _RECORD.items()
            if key in record and not isinstance(record[key], kind)
        ]
        if not isinstance(record.get("compile"), dict | None):
            faults.append(f"kernels[{number}].compile is {record['compile']!r}")
    return faults


def _variable_faults(content: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return the number of variables, and what is wrong with them."""
    variables, roles = content.get("variables"), ("names", "forcing", "diagnostic")
    if not isinstance(variables, dict) or set(variables) != set(roles):
        return 0, ["variables are missing"]
    for role, named in variables.items():
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            return 0, [f"variables.{role} is no list of names"]
    try:
        return len(variables_of(content).names), []
    except ValueError as cause:
        return 0, [f"variables: {cause}"]


def _statistics_faults(statistics: Any, count: int) -> list[str]:
    if not isinstance(statistics, dict):
        return ["statistics are missing"]
    faults = [f"statistics.{name} is missing" for name in STATISTICS if not isinstance(statistics.get(name), Tensor)]
    return faults + [
        f"statistics.{name} has shape {list(statistics[name].shape)} for {count} variables"
        for name in STATISTICS
        if isinstance(statistics.get(name), Tensor) and tuple(statistics[name].shape) != (count,) and count
    ]


def _data_faults(content: Mapping[str, Any]) -> list[str]:
    dataset, coordinates, run = (content.get(name) for name in ("dataset", "coordinates", "run"))
    faults = [] if isinstance(run, dict) and {"id", "environment"} <= set(run) else ["run is missing"]
    step = dataset.get("step") if isinstance(dataset, dict) else None
    if not isinstance(dataset, dict) or not isinstance(dataset.get("metadata"), dict):
        faults.append("dataset is missing")
    elif not isinstance(step, dict) or set(step) != {"months", "seconds"} or not any(step.values()):
        faults.append("dataset.step is missing")
    if not isinstance(coordinates, dict):
        return [*faults, "coordinates are missing"]
    axes = ("latitudes", "longitudes")
    return faults + [f"coordinates.{name} is missing" for name in axes if not isinstance(coordinates.get(name), Tensor)]


def _graph_faults(graph: Any) -> list[str]:
    if not isinstance(graph, dict) or not {"fingerprint", "nodes", "edges"} <= set(graph):
        return ["graph is missing"]
    faults = []
    for part, needed, kinds in (("nodes", "x", {"data", "hidden"}), ("edges", "edge_index", set())):
        stores = graph[part]
        if not _is_mapping_of_mappings(stores) or not stores or not kinds <= set(stores):
            faults.append(f"graph.{part} is incomplete")
            continue
        for kind, tensors in stores.items():
            tensor = tensors.get(needed)
            if not isinstance(tensor, Tensor) or tensor.dim() != 2:
                faults.append(f"graph.{part}.{kind} has no {needed}")
            faults += [f"graph.{part}.{kind}.{n} is no tensor" for n, v in tensors.items() if not isinstance(v, Tensor)]
    return faults


def _summary_faults(graph: Any) -> list[str]:
    numbers = isinstance(graph, dict) and all(
        isinstance(graph.get(part), dict) and all(isinstance(count, int) for count in graph[part].values())
        for part in ("nodes", "edges")
    )
    return [] if numbers else ["graph is missing"]
