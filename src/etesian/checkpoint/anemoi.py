"""A forecaster as a file that ``anemoi-inference run`` takes: a pickled module with metadata in the same zip file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from anemoi.utils.checkpoints import save_metadata

from etesian.checkpoint.content import variables_of
from etesian.data.description import step_of
from etesian.data.variables import Variables
from etesian.files import atomic_path
from etesian.inference.forecaster import DATASET, Forecaster

_PRECISIONS = {"64-true": "32", "32-true": "32", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}
"""Precision of autocast by that of the training; "32" is none, and leaves the model in its own."""


def write_inference(path: Path, forecaster: Forecaster) -> None:
    """Write a forecaster with its ``about``, whole or not at all."""
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            torch.save(forecaster, file)
        arrays = {name: value.numpy() for name, value in forecaster.about["coordinates"].items()}
        save_metadata(str(temporary), metadata(forecaster.about), supporting_arrays={DATASET: arrays})


def metadata(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what anemoi-inference reads of a checkpoint, and under ``etesian`` all that is known of it.

    Parameters
    ----------
    about : mapping
        See :func:`etesian.checkpoint.inference.about`.

    Returns
    -------
    dict
        JSON types only.
    """
    config, dataset, variables = about["config"], about["dataset"], variables_of(about)
    steps, step = config["task"]["multistep_input"], str(step_of(dataset))
    known = dataset["metadata"].get("variables_metadata", {})
    return {
        "version": "2.0",
        "run_id": about["run"]["id"],
        "config": {
            "training": {"precision": _PRECISIONS[config["training"]["precision"]], "multistep_input": steps,
                         "multistep_output": 1},
            "data": {"frequency": dataset["metadata"].get("frequency"), "timestep": step,
                     "datasets": {DATASET: {"forcing": list(variables.forcing),
                                            "diagnostic": list(variables.diagnostic)}}},
            "dataloader": {split: {"datasets": {DATASET: config["dataloader"][split]}}
                           for split in ("training", "validation", "test")},
        },
        "dataset": {
            DATASET: dataset["metadata"]
            | {
                "variables": list(variables.names),
                "variables_metadata": {name: known.get(name, {}) for name in variables.names},
            }
        },
        "data_indices": {DATASET: _indices(variables)},
        "metadata_inference": {
            "dataset_names": [DATASET],
            "task": "forecaster",
            DATASET: {
                "data_indices": {"input": _positions(variables.input), "output": _positions(variables.output)},
                "variable_types": {role: list(getattr(variables, role))
                                   for role in ("forcing", "prognostic", "diagnostic")},
                "timesteps": {"input_relative_date_indices": list(range(steps)),
                              "output_relative_date_indices": [steps], "timestep": step},
            },
        },
        "provenance_training": _provenance(about["run"]["environment"]),
        "etesian": {name: value for name, value in about.items() if name != "coordinates"},
    }  # fmt: skip


def _indices(variables: Variables) -> dict[str, Any]:
    """Return positions by role, in the dataset, and in the input and output of the model."""
    inputs, outputs, names = variables.input, variables.output, variables.names

    def among(where: Sequence[str], **roles: Sequence[str]) -> dict[str, list[int]]:
        return {role: [where.index(name) for name in members] for role, members in roles.items()}

    roles = {"forcing": variables.forcing, "prognostic": variables.prognostic, "diagnostic": variables.diagnostic}
    read, written = ("forcing", "prognostic"), ("prognostic", "diagnostic")
    return {
        "data": {
            "input": among(names, full=inputs, **roles),
            "output": among(names, full=outputs, **roles),
        },
        "model": {
            "input": among(inputs, full=inputs, **{role: roles[role] for role in read}, diagnostic=()),
            "output": among(outputs, full=outputs, **{role: roles[role] for role in written}, forcing=()),
        },
    }


def _positions(names: Sequence[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(names)}


def _provenance(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a run in the form that the Anemoi tools compare."""
    versions = {name.replace("-", "." if name.startswith("anemoi-") else "_"): version
                for name, version in environment["versions"].items() if version is not None}  # fmt: skip
    git = environment["git"]
    record = None if git is None else {"sha1": git["commit"], "modified_files": int(bool(git["dirty"])),
                                       "untracked_files": 0}  # fmt: skip
    return {
        "python": environment["python"],
        "time": environment.get("date"),
        "module_versions": versions,
        "git_versions": {} if record is None else {"etesian": {"git": record}},
    }
