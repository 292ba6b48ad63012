"""The layouts of the releases of anemoi-training, 0.3 to 0.17, as one."""

from __future__ import annotations

from collections.abc import Iterable

from etesian.errors import UserError
from etesian.interpolation import Leaf

_MOVED = {
    "hardware.accelerator": "system.hardware.accelerator",
    "hardware.num_gpus_per_node": "system.hardware.num_gpus_per_node",
    "hardware.num_nodes": "system.hardware.num_nodes",
    "hardware.num_gpus_per_model": "system.hardware.num_gpus_per_model",
    "hardware.num_gpus_per_ensemble": "system.hardware.num_gpus_per_ensemble",
    "hardware.paths.output": "system.output.root",
    "hardware.files.truncation": "system.input.truncation",
    "hardware.files.truncation_inv": "system.input.truncation_inv",
    "hardware.files.warm_start": "system.input.warm_start",
    "data.timestep": "task.timestep",
    "dataloader.validation_rollout": "task.validation_rollout",
    "training.multistep_input": "task.multistep_input",
    "training.multistep_output": "task.multistep_output",
    "training.rollout.max": "training.rollout.maximum",
    "training.lr.rate": "training.optimization.lr",
    "training.lr.min": "training.optimization.lr_scheduler.lr_min",
    "training.lr.iterations": "training.optimization.lr_scheduler.t_initial",
    "training.lr.warmup": "training.optimization.lr_scheduler.warmup_t",
    "training.lr.warmup_t": "training.optimization.lr_scheduler.warmup_t",
    "training.optimizer": "training.optimization.optimizer",
    "training.training_method": "training.method",
    "training.model_task": "training.method",
    "training.method._target_": "training.method",
    "model.trainable_parameters.data": "model.node_trainable_parameters.data",
    "model.trainable_parameters.hidden": "model.node_trainable_parameters.hidden",
    "model.trainable_parameters": "model.edge_trainable_parameters",
}
"""Keys of older releases, and where 0.17 has them; the longest that fits counts."""

_DOT = "\N{MIDDLE DOT}"
"""Stands for a dot within the name of a key."""

_SPLIT_KEYS = ("dataset_config", "start", "end", "trajectory")


def simplify(leaves: list[Leaf]) -> tuple[dict[str, Leaf], str]:
    """Return the values by their keys in one layout: one dataset, one encoder, one decoder, places as in 0.17.

    The name of the dataset is returned too.

    Raises
    ------
    UserError
        If there are several datasets, encoders or decoders.
    """
    dataset = _only(leaves, ("data", "datasets"), "data")
    for kind in ("encoders", "decoders"):
        _only(leaves, ("model", kind), "0")
    return {".".join(part.replace(".", _DOT) for part in _simple(leaf.path, dataset)): leaf for leaf in leaves}, dataset


def plain(name: str) -> str:
    """Return a name under a key as the config has it, such as ``1.5``."""
    return name.replace(_DOT, ".")


def _only(leaves: Iterable[Leaf], section: tuple[str, str], default: str) -> str:
    names = list(dict.fromkeys(leaf.path[2] for leaf in leaves if leaf.path[:2] == section and len(leaf.path) > 2))
    if len(names) > 1:
        what = f"{'.'.join(section)} has {len(names)}: {', '.join(names)}"
        raise UserError(what, where=".".join(section), allowed="one: this package trains on one dataset")
    return names[0] if names else default


def _simple(path: tuple[str, ...], dataset: str) -> tuple[str, ...]:
    opened = next((n for n, name in enumerate(path) if name == "dataset_config"), len(path))
    for n, name in enumerate(path[:opened]):
        if name == "datasets" and path[n + 1 : n + 2] == (dataset,):
            path = path[:n] + path[n + 2 :]
            break
    if path[:1] == ("model",) and path[1:2] in (("encoders",), ("decoders",)) and len(path) > 3:
        path = ("model", path[1][:-1], *path[4:]) if path[3] == "mapper" else ("model", path[1], *path[3:])
    if path[:1] == ("dataloader",) and path[1:2] in (("training",), ("validation",), ("test",)):
        if path[2:] and path[2] not in _SPLIT_KEYS:
            path = (*path[:2], "dataset_config", *path[2:])
        elif path[2:] == ("dataset_config",):
            path = (*path, "dataset")  # a path alone
    for length in range(len(path), 0, -1):
        if moved := _MOVED.get(".".join(path[:length])):
            return (*moved.split("."), *path[length:])
    return path
