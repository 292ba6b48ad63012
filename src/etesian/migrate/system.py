"""Sections ``dataloader`` and ``system``: periods, batches, workers, devices, files."""

from __future__ import annotations

from typing import Any

from etesian.migrate.theirs import Theirs

_SPLITS = ("training", "validation", "test")
_SHARED = "how processes share a model is not chosen"


def translate_system(theirs: Theirs) -> None:
    """Translate the section ``system``, which releases before 0.7 call ``hardware``."""
    accelerator = theirs.value("system.hardware.accelerator", "cuda")
    if accelerator in ("cuda", "cpu"):
        theirs.carry_as("system.hardware.accelerator", "system.hardware.accelerator", accelerator)
    elif accelerator in ("auto", "gpu"):
        why = (
            "a GPU"
            if accelerator == "gpu"
            else "nothing is chosen by the machine here; system.hardware.accelerator=cpu for a run without a GPU"
        )
        theirs.change("system.hardware.accelerator", "system.hardware.accelerator", "cuda", why)
    else:
        theirs.refuse("system.hardware.accelerator", "cuda, cpu")
    for name in ("num_gpus_per_node", "num_nodes", "num_gpus_per_model"):
        theirs.carry(f"system.hardware.{name}")
    theirs.expect("system.hardware.num_gpus_per_ensemble", (1, None), "one member", default=1)
    if theirs.is_set("system.output.root"):
        theirs.carry("system.output.root")
    else:
        theirs.drop("system.output.root", "not given there: a run writes to outputs/<run_id>")
    for name in ("truncation", "truncation_inv", "loss_matrices_path"):
        theirs.expect(f"system.input.{name}", (None,), "no model here reads it")
    theirs.expect("system.input.warm_start", (None,), "training.fork_run_id names what a run starts from")
    for key in ("system.output", "hardware.paths", "hardware.files.checkpoint", "hardware.files.dataset"):
        theirs.drop(
            key, "a run writes to system.output.root/<run_id>" if "dataset" not in key else "see the dataloader"
        )


def translate_dataloader(theirs: Theirs) -> None:
    """Translate the section ``dataloader``; after ``system`` and ``data``."""
    for split in _SPLITS:
        for key in ("num_workers", "batch_size", "limit_batches"):
            theirs.carry(f"dataloader.{key}.{split}")
        _split(theirs, split)
    for key in ("num_workers", "batch_size", "limit_batches"):
        theirs.drop(f"dataloader.{key}.predict", "there is no such split")
    theirs.carry("dataloader.prefetch_factor")
    pinned, key = theirs.value("dataloader.pin_memory"), "dataloader.pin_memory"
    if pinned and theirs.ours["system"]["hardware"]["accelerator"] == "cpu":
        theirs.change(key, key, None, "page-locked memory with a GPU only")
    else:
        theirs.carry(key)
    theirs.imply("dataloader.persistent_workers", "workers stay over the epochs")
    theirs.drop("dataloader.multiprocessing_context", "dataloader.workers says processes or threads")
    theirs.imply("dataloader.read_group_size", _SHARED)
    theirs.expect(
        "dataloader.grid_indices._target_", ("anemoi.training.data.grid_indices.FullGrid",), "all grid points"
    )
    theirs.imply("dataloader.grid_indices", "all grid points")
    for key in ("model_run_info", "trajectory_sampling"):
        theirs.expect(f"dataloader.{key}", (None,), "forecasts as data are not there")
    first = theirs.ours["dataloader"]["training"]["dataset_config"].get("dataset")
    if theirs.is_set("system.input.dataset") and isinstance(theirs.value("system.input.dataset"), str):
        theirs.carry("system.input.dataset")
    else:
        theirs.set("system.input.dataset", _first_path(first))
        theirs.imply("system.input.dataset", "that of dataloader.training")
    theirs.imply("dataloader.dataset", "read through the splits")


def _first_path(options: Any) -> str:
    """Return the first dataset that options of ``open_dataset`` name, such as those of a ``join``."""
    while isinstance(options, dict | list):
        parts = list(options.values()) if isinstance(options, dict) else options
        options = parts[0] if parts else "unnamed"
    return options if isinstance(options, str) else "unnamed"


def _split(theirs: Theirs, split: str) -> None:
    key = f"dataloader.{split}"
    options: dict[str, Any] = {}
    for name in theirs.names(f"{key}.dataset_config"):
        value = theirs.value(f"{key}.dataset_config.{name}")
        if value is None or value == []:
            theirs.imply(f"{key}.dataset_config.{name}", "empty")
            continue
        if name == "dataset" and not isinstance(value, str | list | dict):
            theirs.refuse(f"{key}.dataset_config.{name}", "a path, or options of open_dataset")
            continue
        options[name] = value
        theirs.carry_as(f"{key}.dataset_config.{name}", f"{key}.dataset_config.{name}", value)
    theirs.set(f"{key}.dataset_config", options)
    for end in ("start", "end"):
        theirs.set(f"{key}.{end}", None)
        theirs.carry(f"{key}.{end}")
    theirs.expect(f"{key}.trajectory", (None,), "forecasts as data are not there")
