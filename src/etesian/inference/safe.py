"""A forecaster without pickle: a folder of ``model.safetensors`` and ``metadata.json``.

The tensors are ``weights/...``, ``graph/nodes/KIND/...``, ``graph/edges/KIND/...``, ``statistics/...`` and
``coordinates/...``; everything else is JSON. Both files carry the same ``id``, so that two that were not written
together are found out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from etesian.data.variables import Variables
from etesian.errors import Problem, UserError
from etesian.files import atomic_path, write_json
from etesian.graph.pack import unpack_graph
from etesian.inference.assemble import assemble
from etesian.inference.forecaster import Forecaster
from etesian.inference.layout import METADATA, TENSORS
from etesian.kernels.interchange import differences, key_of, named
from etesian.kernels.record import KernelRecord, from_json
from etesian.kernels.resolve import COMPONENTS, resolve_kernels
from etesian.schema.validate import validate_section

VERSION = 1
"""Version of the layout."""

_MEND = "name a folder such as checkpoints/inference-last, as a run wrote it"


def write_forecaster(
    folder: Path, forecaster: Forecaster, graph: Mapping[str, Any], statistics: Mapping[str, Tensor], identity: str
) -> None:
    """Write a forecaster with its ``about``, each file whole or not at all.

    Parameters
    ----------
    folder : Path
        Made if it is missing; the two files in it are replaced.
    forecaster : Forecaster
        On any device.
    graph : mapping
        What :func:`etesian.graph.pack.pack_graph` returns of its graph.
    statistics : mapping
        ``mean``, ``stdev``, ``maximum``, ``minimum``, (V,) each.
    identity : str
        What no other state of any run has.
    """
    about = dict(forecaster.about)
    groups: dict[str, Mapping[str, Any]] = {
        "weights": {name: value for name, value in forecaster.state_dict().items() if isinstance(value, Tensor)},
        "statistics": statistics,
        "coordinates": about.pop("coordinates"),
    }
    for part in ("nodes", "edges"):
        groups |= {f"graph/{part}/{kind}": tensors for kind, tensors in graph[part].items()}
    tensors = {
        f"{group}/{name}": value.detach().cpu().contiguous().clone()  # two names of one storage are refused
        for group, members in groups.items()
        for name, value in members.items()
    }
    with atomic_path(folder / TENSORS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt", "id": identity})
    write_json(
        folder / METADATA,
        {"version": VERSION, "id": identity, "fingerprint": graph["fingerprint"], "about": about},
    )


def read_about(folder: Path) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return what a folder tells of its forecaster, and the shapes of its tensors; most of them stay on disk.

    Raises
    ------
    UserError
        As :func:`read_forecaster`, as far as it can be told without tensors.
    """
    content = _read_json(folder)
    with _opened(folder, content) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        coordinates = {name: file.get_tensor(name) for name in shapes if name.startswith("coordinates/")}
    return content["about"] | {"coordinates": _group(coordinates, "coordinates/")}, shapes


def read_forecaster(folder: Path) -> Forecaster:
    """Return the forecaster of a folder.

    Parameters
    ----------
    folder : Path
        A folder that a run, or ``checkpoint export``, wrote.

    Returns
    -------
    Forecaster
        In evaluation mode, on the CPU, in the precision it was written in; ``about`` tells where it comes from.

    Raises
    ------
    UserError
        If a file is missing, damaged, of another version or of another state than the other one; or if a kernel is not
        installed, or does not mean what it meant when the model was trained.
    """
    content = _read_json(folder)
    about = content["about"]
    with _opened(folder, content) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        records = from_json(about["kernels"])
        model = validate_section("model", _model_tree(about["config"]["model"], records))
        data = validate_section("data", about["config"]["data"])
        variables = Variables(**{role: tuple(names) for role, names in about["variables"].items()})
        multistep_input = about["config"]["task"]["multistep_input"]
        graph = unpack_graph(
            {"fingerprint": content["fingerprint"]}
            | {part: _nested(_group(tensors, f"graph/{part}/")) for part in ("nodes", "edges")}
        )
        statistics = {name: value.numpy() for name, value in _group(tensors, "statistics/").items()}
    except (KeyError, TypeError, ValueError) as cause:
        raise _damaged(folder, f"{type(cause).__name__}: {cause}") from cause
    kernels = resolve_kernels(model, preset=None, overrides=[])
    _same_kernels(folder, records, kernels.records, model)
    forecaster = assemble(model, data, multistep_input, variables, statistics, graph, kernels)
    weights = _group(tensors, "weights/")
    if weights and all(value.dtype != torch.float32 for value in weights.values() if value.is_floating_point()):
        forecaster.double()
    try:
        forecaster.load_state_dict(weights)
    except RuntimeError as cause:
        raise _damaged(folder, " ".join(str(cause).split())) from cause
    forecaster.about = about | {"coordinates": _group(tensors, "coordinates/")}
    return forecaster.eval().requires_grad_(False)


def _model_tree(model: Mapping[str, Any], records: list[KernelRecord]) -> dict[str, Any]:
    """Return section ``model`` with the kernels of the records, and nothing of compilation."""
    tree = copy.deepcopy(dict(model))
    tree.pop("compile", None)
    tree["layer_kernels"] = {}
    for component in COMPONENTS:
        tree[component]["layer_kernels"] = {}
    for record in records:
        section = tree if record.component == "model" else tree[record.component]
        section["layer_kernels"][record.slot] = {"_target_": record.target, **record.arguments}
    return tree


def _same_kernels(folder: Path, stored: list[KernelRecord], here: list[KernelRecord], model: Any) -> None:
    problems = [
        Problem(
            f"{named(changed.old)} made the weights of {folder}; here it is {named(changed.new)}",
            where=key_of(changed),
            mend="install the version of the library that trained the model (see metadata.json)",
        )
        for changed in differences(stored, here, model)
    ]
    if problems:
        raise UserError.collect(problems)


def _read_json(folder: Path) -> dict[str, Any]:
    missing = [name for name in (TENSORS, METADATA) if not (folder / name).is_file()]
    if missing:
        what = f"{folder} holds no {' and no '.join(missing)}" if folder.is_dir() else f"{folder} is no folder"
        raise UserError(what, where=str(folder), mend=_MEND)
    try:
        content = json.loads((folder / METADATA).read_text())
    except (ValueError, OSError) as cause:
        raise _damaged(folder, f"{METADATA} is not JSON: {cause}") from cause
    parts = {"version", "id", "fingerprint", "about"}
    if not isinstance(content, dict) or not parts <= set(content) or not isinstance(content["about"], dict):
        raise _damaged(folder, f"{METADATA} is not what was written")
    if content["version"] != VERSION:
        raise UserError(f"{folder} is of version {content['version']!r}", where=str(folder / METADATA),
                        allowed=f"version {VERSION}", mend="load it with the etesian that wrote it")  # fmt: skip
    return content


def _opened(folder: Path, content: Mapping[str, Any]) -> Any:
    """Open the tensors, if they were written with the metadata."""
    try:
        file: Any = safe_open(folder / TENSORS, framework="pt")
    except (SafetensorError, OSError) as cause:
        raise _damaged(folder, f"{TENSORS}: {cause}") from cause
    if (file.metadata() or {}).get("id") != content["id"]:
        raise _damaged(folder, f"{TENSORS} and {METADATA} were not written together")
    return file


def _damaged(folder: Path, reason: str) -> UserError:
    return UserError(f"{folder} is damaged: {reason}", where=str(folder),
                     mend="let the run go on, which writes it again, or use a .ckpt beside it")  # fmt: skip


def _group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _nested(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return tensors by kind and name: ``data to hidden/edge_index`` under ``data to hidden``."""
    nested: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.rpartition("/")
        nested.setdefault(kind, {})[name] = value
    return nested
