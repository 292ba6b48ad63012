"""From a checkpoint of anemoi-training to one of this package, with the graph and the config to train on from it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anemoi.utils.dates import frequency_to_string
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian import __version__
from etesian.checkpoint.content import FORMAT, describe_experiment
from etesian.checkpoint.peer.source import PeerCheckpoint
from etesian.checkpoint.peer.translate import Faults, translate_bounds, translate_data, translate_model
from etesian.checkpoint.peer.weights import convert_weights
from etesian.checkpoint.summary import WEIGHTS
from etesian.data.normalizer import Normalizer
from etesian.errors import UserError
from etesian.graph.existing import adapt
from etesian.inference.assemble import assemble_forecaster
from etesian.inference.forecaster import Forecaster
from etesian.kernels.resolve import resolve_kernels
from etesian.schema.data import NormalizerSettings
from etesian.schema.graph import ExistingGraphSettings
from etesian.schema.validate import validate_config


@dataclass(frozen=True)
class Imported:
    """A checkpoint of this package, made of one of the peer.

    Attributes
    ----------
    checkpoint : dict
        What a run would have written, without the state of an optimiser.
    config : dict
        Its config.
    graph : HeteroData
        Its graph.
    forecaster : Forecaster
        What it is of, in evaluation mode.
    """

    checkpoint: dict[str, Any]
    config: dict[str, Any]
    graph: HeteroData
    forecaster: Forecaster


def convert(
    source: PeerCheckpoint, base: Mapping[str, Any], graph_file: Path, dataset: str | None, run_id: str
) -> Imported:
    """Make a checkpoint of this package.

    Parameters
    ----------
    source : PeerCheckpoint
        What was read.
    base : mapping
        A config of this package: what is not of the model, the variables, the graph and the dataset stays its own.
    graph_file : Path
        Where the graph will be kept.
    dataset : str, optional
        The dataset that the config names; by default that of the checkpoint.
    run_id : str
        Name of the run in the checkpoint.

    Raises
    ------
    UserError
        With everything that has no counterpart here.
    """
    faults, where = Faults(str(source.path)), str(source.path)
    theirs = source.config["model"]
    model = translate_model(theirs, source.dataset, faults)
    normalizer = translate_data(source.config["data"], source.dataset, faults)
    names = {
        "dataset": source.dataset, "hidden": theirs["model"]["hidden_nodes_name"],
        "encoder": next(iter(theirs["encoders"])), "decoder": next(iter(theirs["decoders"])),
    }  # fmt: skip
    steps = _steps(source, names["encoder"], model, faults)
    model["bounding"] = _bounds(source, normalizer, faults)
    graph = adapt(source.graph, ExistingGraphSettings(data_nodes=names["dataset"], hidden_nodes=names["hidden"]), where)
    tree = _config(source, base, model, normalizer, steps, graph_file, dataset)
    config = validate_config(tree)
    kernels = resolve_kernels(config.model, preset=None, overrides=[])
    forecaster = assemble_forecaster(config, source.variables, source.statistics, graph, kernels)
    state = {name.removeprefix("model."): v for name, v in source.state.items() if name.startswith("model.")}
    weights = convert_weights(forecaster.model, config.model.kind, state, source.graph, names, where)
    forecaster.model.load_state_dict(weights)
    _check_normalizer(source, forecaster.normalizer)
    resolved = config.model_dump(mode="json", by_alias=True)
    content = describe_experiment(
        resolved, kernels.records, source.variables, source.statistics, graph,
        dataset=_dataset(source), coordinates=_coordinates(source, graph),
        run={"id": run_id, "environment": _environment(source), "imported": where},
    )  # fmt: skip
    checkpoint = {
        "etesian": {"format": FORMAT, "version": __version__, **content, "random": {}},
        "state_dict": {f"{WEIGHTS}{name}": value for name, value in forecaster.state_dict().items()},
        "loops": {}, "optimizer_states": [], "lr_schedulers": [], "global_step": source.step, "epoch": source.epoch,
    }  # fmt: skip
    return Imported(checkpoint, resolved, graph, forecaster.eval())


def _steps(source: PeerCheckpoint, encoder: str, model: Mapping[str, Any], faults: Faults) -> int:
    """Return the number of input states, which the width of the encoder's embedding tells."""
    timesteps = source.metadata["metadata_inference"][source.dataset].get("timesteps", {})
    outputs = timesteps.get("output_relative_date_indices") or [0]
    if len(outputs) != 1:
        faults.refuse("multistep_output", len(outputs), "1")
        faults.stop()
    embedding = source.state.get(f"model.encoder.{encoder}.emb_nodes_src.weight")
    if embedding is None:
        raise UserError(f"{source.path} has no weights of its encoder's embedding", where=str(source.path))
    width = embedding.shape[1] - 4 - model["node_trainable_parameters"]["data"]
    steps, rest = divmod(width, len(source.variables.input))
    if rest or steps < 1:
        what = f"the encoder reads {width} values a node, no multiple of the {len(source.variables.input)} inputs"
        raise UserError(f"{what}: attributes of nodes have no counterpart here", where=str(source.path))
    return steps


def _bounds(source: PeerCheckpoint, normalizer: Mapping[str, Any], faults: Faults) -> list[dict[str, Any]]:
    normal = Normalizer(source.variables, source.statistics, NormalizerSettings.model_validate(dict(normalizer)))
    scale, offset = (
        {name: values[source.variables.names.index(name)].item() for name in source.variables.output}
        for values in (normal.scale, normal.offset)
    )
    return translate_bounds(source.config["model"], source.dataset, scale, offset, faults)


def _config(
    source: PeerCheckpoint,
    base: Mapping[str, Any],
    model: dict[str, Any],
    normalizer: dict[str, Any],
    steps: int,
    graph_file: Path,
    dataset: str | None,
) -> dict[str, Any]:
    tree = copy.deepcopy(dict(base))
    path = dataset or _dataset_path(source)
    tree["model"] = model
    tree["data"] |= {
        "forcing": list(source.variables.forcing), "diagnostic": list(source.variables.diagnostic),
        "processors": {"normalizer": normalizer, "imputer": {}},
    }  # fmt: skip
    frequency = source.config["data"].get("frequency")
    tree["data"]["frequency"] = None if frequency is None else str(frequency)
    tree["task"] |= {"multistep_input": steps, "timestep": frequency_to_string(source.timestep)}
    tree["graph"] = {"existing": {}}
    tree["system"]["input"] = {"dataset": path, "graph": str(graph_file)}
    for split in ("training", "validation", "test"):
        tree["dataloader"][split]["dataset_config"] = {"dataset": path, "frequency": tree["data"]["frequency"]}
    return tree


def _dataset_path(source: PeerCheckpoint) -> str:
    """Return the dataset that the peer was trained on, where its config names one path."""
    section = (source.config.get("dataloader") or {}).get("training") or {}
    told = (section.get("datasets") or {}).get(source.dataset) or section
    named = told.get("dataset_config", told.get("dataset")) if isinstance(told, Mapping) else None
    named = named.get("dataset") if isinstance(named, Mapping) else named
    if not isinstance(named, str):
        raise UserError(
            f"{source.path} does not name its dataset by one path", where="--dataset", mend="--dataset my.zarr"
        )
    return named


def _check_normalizer(source: PeerCheckpoint, normalizer: Normalizer) -> None:
    """Compare the normaliser with the peer's own coefficients.

    Raises
    ------
    UserError
        If they differ.
    """
    for end, own in (("_norm_mul", normalizer.scale), ("_norm_add", normalizer.offset)):
        for name, value in source.state.items():
            if not (name.startswith("pre_processors.") and name.endswith(end)):
                continue
            if value.shape != own.shape or not torch.allclose(value, own, rtol=1e-6, atol=1e-12):
                what = f"{name} of the checkpoint is not what its statistics and its config give"
                raise UserError(what, where=str(source.path))


def _dataset(source: PeerCheckpoint) -> dict[str, Any]:
    told = dict(source.metadata["dataset"].get(source.dataset) or {})
    seconds = int(source.timestep.total_seconds())
    shape = told.get("shape") or [0]
    return {
        "metadata": told,
        "first": str(told.get("start_date", "unknown")),
        "last": str(told.get("end_date", "unknown")),
        "dates": int(shape[0]),
        "step": {"months": 0, "seconds": seconds},
    }


def _coordinates(source: PeerCheckpoint, graph: HeteroData) -> dict[str, Tensor]:
    """Return latitudes and longitudes, degrees: as the dataset had them where the checkpoint keeps them."""
    arrays = source.arrays.get(source.dataset) or {}
    nodes = np.rad2deg(graph["data"].x.double().numpy())
    axes: Sequence[tuple[str, int]] = (("latitudes", 0), ("longitudes", 1))
    return {name: torch.as_tensor(np.asarray(arrays.get(name, nodes[:, n]), dtype=np.float64)) for name, n in axes}


def _environment(source: PeerCheckpoint) -> dict[str, Any]:
    told = source.metadata.get("provenance_training") or {}
    versions = told.get("module_versions") or {}
    return {"python": told.get("python"), "versions": {str(k): str(v) for k, v in versions.items()}, "git": None}
