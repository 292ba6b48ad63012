"""What a checkpoint is, in plain numbers; its tensors stay on disk."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from etesian.checkpoint.content import variables_of
from etesian.checkpoint.read import check_about, check_format, load_file
from etesian.data.description import step_of
from etesian.errors import UserError
from etesian.inference.forecaster import Forecaster
from etesian.inference.safe import read_about

WEIGHTS = "forecaster."
"""Beginning of the names of a forecaster's weights in a checkpoint of a run."""


def summarise(path: Path) -> dict[str, Any]:
    """Describe a checkpoint of a run, one for inference, or a folder without pickle.

    Returns
    -------
    dict
        JSON-able: ``file``, ``bytes``, ``contains`` (``training`` or ``inference``), ``etesian`` (version), ``format``,
        ``step`` and ``epoch`` (done), ``precision``, ``model`` (``kind``, ``channels``, ``layers``, ``parameters``),
        ``variables`` (``input``, ``output``, ``forcing``, ``diagnostic``), ``multistep_input``, ``timestep``, ``run``
        (its name), ``dataset`` (``first`` and ``last`` date of the training, ``dates``, ``arguments`` of
        ``open_dataset``), ``graph`` (``fingerprint``, ``nodes``, ``edges``), ``kernels`` (records), ``compile``
        (classes of modules that the run compiled, beside what the records have, each with ``module`` and ``options``)
        and, of an exported one, ``exported`` (what it was made from, and how far its kernels are from those before).

    Raises
    ------
    UserError
        If the file is neither.
    """
    content, contains, counters, parameters = _read(path)
    config, variables = content["config"], variables_of(content)
    summary = {
        "file": str(path),
        "bytes": sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size,
        "contains": contains,
        "etesian": content["version"],
        "format": content["format"],
        "step": counters["global_step" if contains == "training" else "step"],
        "epoch": counters["epoch"],
        "precision": config["training"]["precision"],
        "model": {
            "kind": config["model"]["kind"],
            "channels": config["model"]["num_channels"],
            "layers": config["model"]["processor"]["num_layers"],
            "parameters": parameters,
        },
        "variables": {name: list(getattr(variables, name)) for name in ("input", "output", "forcing", "diagnostic")},
        "multistep_input": config["task"]["multistep_input"],
        "timestep": str(step_of(content["dataset"])),
        "run": content["run"]["id"],
        "dataset": {name: content["dataset"][name] for name in ("first", "last", "dates")}
        | {"arguments": content["dataset"]["metadata"].get("arguments")},
        "graph": content["graph"] if contains == "inference" else graph_summary(content["graph"]),
        "kernels": content["kernels"],
        "compile": [entry for entry in config["model"].get("compile") or [] if entry.get("module")],
    }
    return summary | ({"exported": content["exported"]} if contains == "inference" else {})


def _read(path: Path) -> tuple[dict[str, Any], str, dict[str, Any], int]:
    """Return what a checkpoint tells of its experiment, what it is for, its counters and the number of parameters."""
    if path.is_dir():
        content, shapes = read_about(path)
        check_about(path, content)
        parameters = sum(prod(shape) for name, shape in shapes.items() if name.startswith("weights/model."))
        return content, "inference", content["exported"], parameters
    loaded = load_file(path, lazily=True)
    if isinstance(loaded, Forecaster) and loaded.about:
        check_about(path, loaded.about)
        parameters = sum(weight.numel() for weight in loaded.model.parameters())
        return loaded.about, "inference", loaded.about["exported"], parameters
    if isinstance(loaded, nn.Module):
        raise UserError(f"{path} holds a {type(loaded).__name__} that tells nothing of itself", where=str(path))
    check_format(path, loaded)
    return loaded["etesian"], "training", loaded, _count(loaded["state_dict"])


def graph_summary(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return fingerprint, number of nodes and number of edges of a packed graph."""
    return {
        "fingerprint": packed["fingerprint"],
        "nodes": {kind: tensors["x"].shape[0] for kind, tensors in packed["nodes"].items()},
        "edges": {kind: tensors["edge_index"].shape[1] for kind, tensors in packed["edges"].items()},
    }


def _count(state: Mapping[str, Any]) -> int:
    """Return the number of weights of the model; those of the normaliser and the loss are no weights of the model."""
    return sum(
        value.numel()
        for name, value in state.items()
        if name.startswith(f"{WEIGHTS}model.") and isinstance(value, Tensor)
    )
