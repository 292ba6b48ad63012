"""From the config of anemoi-training to the sections ``model`` and ``data`` here; what has no counterpart is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from etesian.errors import Problem, UserError

LAYERS = "anemoi.models.layers"
COMPONENTS = ("encoder", "processor", "decoder")
EDGES = {"encoder": "data2hidden", "processor": "hidden2hidden", "decoder": "hidden2data"}

_MODELS = ("anemoi.models.models.AnemoiModelEncProcDec",
           "anemoi.models.models.encoder_processor_decoder.AnemoiModelEncProcDec")  # fmt: skip
_MAPPERS = {"encoder": "GraphTransformerForwardMapper", "decoder": "GraphTransformerBackwardMapper"}
_PROCESSORS = {f"{LAYERS}.processor.GraphTransformerProcessor": "graphtransformer",
               f"{LAYERS}.processor.TransformerProcessor": "transformer"}  # fmt: skip
_NORMALIZERS = ("anemoi.models.preprocessing.normalizer.InputNormalizer",)
_MLPS = {"mlp": "etesian.kernels.mlp.MLP", "glu": "etesian.kernels.glu.GLU", "swiglu": "etesian.kernels.glu.SwiGLU",
         "geglu": "etesian.kernels.glu.GeGLU", "reglu": "etesian.kernels.glu.ReGLU"}  # fmt: skip
_KERNELS = {
    "LayerNorm": ("torch.nn.LayerNorm",),
    "Linear": ("torch.nn.Linear",),
    "QueryNorm": (f"{LAYERS}.normalization.AutocastLayerNorm",),
    "KeyNorm": (f"{LAYERS}.normalization.AutocastLayerNorm",),
}
_OFF: dict[str, dict[str, Any]] = {
    "processor": {"edge_pre_mlp": False, "softcap": 0.0, "use_alibi_slopes": False, "use_rotary_embeddings": False,
                  "dropout_p": 0.0, "qkv_bias": False},
    "encoder": {"edge_pre_mlp": False},
    "decoder": {"edge_pre_mlp": False},
}  # fmt: skip
"""What has no counterpart here, and the value that leaves it out."""


class Faults:
    """What was found of a config that has no counterpart."""

    def __init__(self, where: str, source: str = "checkpoint") -> None:
        self.where, self.source, self.problems = where, source, list[Problem]()

    def refuse(self, key: str, value: Any, allowed: str) -> None:
        """Note a value that can't be represented."""
        what = f"{key}={value!r} of the {self.source} has no counterpart here"
        self.problems.append(Problem(what, self.where, allowed))

    def expect(self, key: str, value: Any, *allowed: Any) -> None:
        """Note a value that is none of those allowed."""
        if value not in allowed:
            self.refuse(key, value, " or ".join(dict.fromkeys(map(repr, allowed))))

    def stop(self) -> None:
        """Raise what was noted.

        Raises
        ------
        UserError
            With every problem.
        """
        if self.problems:
            raise UserError.collect(self.problems)


def translate_model(config: Mapping[str, Any], dataset: str, faults: Faults) -> dict[str, Any]:
    """Return the section ``model``, but for ``bounding``.

    Parameters
    ----------
    config : mapping
        The peer's section ``model``.
    dataset : str
        Name of its dataset.
    faults : Faults
        Takes what has no counterpart.
    """
    outer = config.get("model") or {}
    faults.expect("model.model._target_", outer.get("_target_"), *_MODELS)
    sections = {"processor": config.get("processor") or {}}
    for component, plural, sets in (
        ("encoder", "encoders", "source_datasets"),
        ("decoder", "decoders", "target_datasets"),
    ):
        entries = config.get(plural) or {}
        if len(entries) != 1:
            faults.refuse(f"model.{plural}", list(entries), f"one {component}")
            faults.stop()
        (entry,) = entries.values()
        faults.expect(f"model.{plural}.{sets}", list(entry.get(sets) or []), [dataset])
        if component == "decoder":
            features = list(entry.get("target_node_features") or [])
            faults.expect("model.decoders.target_node_features", features, ["encoded_data"])
        sections[component] = entry.get("mapper") or {}
        target = sections[component].get("_target_")
        faults.expect(f"model.{plural}.mapper._target_", target, f"{LAYERS}.mapper.{_MAPPERS[component]}")
    aggregator = (config.get("latent_aggregator") or {}).get("_target_", f"{LAYERS}.aggregator.SumAggregator")
    faults.expect("model.latent_aggregator._target_", aggregator, f"{LAYERS}.aggregator.SumAggregator")
    kind = _PROCESSORS.get(sections["processor"].get("_target_", ""))
    faults.expect("model.processor._target_", sections["processor"].get("_target_"), *_PROCESSORS)
    faults.stop()
    assert kind is not None
    channels = int(sections["processor"]["num_channels"])
    model: dict[str, Any] = {"kind": kind, "num_channels": channels, "latent_skip": bool(outer.get("latent_skip"))}
    for component in COMPONENTS:
        model[component] = _component(component, sections[component], channels, kind, faults)
    learnt = {
        EDGES[component]: int(sections[component].get("trainable_size") or 0)
        for component in COMPONENTS
        if component != "processor" or kind == "graphtransformer"
    }
    nodes = config.get("node_trainable_parameters") or {}
    model["edge_trainable_parameters"] = learnt
    hidden = outer.get("hidden_nodes_name")
    model["node_trainable_parameters"] = {"data": int(nodes.get(dataset) or 0), "hidden": int(nodes.get(hidden) or 0)}
    model["residual"] = _residual(_of_dataset(config.get("residual"), dataset), faults)
    mappings = [model[component]["layer_kernels"] for component in COMPONENTS]
    model["layer_kernels"], model["compile"] = {}, []
    if all(mapping == mappings[0] for mapping in mappings):
        model["layer_kernels"] = mappings[0]
        for component in COMPONENTS:
            model[component]["layer_kernels"] = {}
    faults.stop()
    return model


def _component(name: str, section: Mapping[str, Any], channels: int, kind: str, faults: Faults) -> dict[str, Any]:
    where = f"model.{name}"
    faults.expect(f"{where}.num_channels", section.get("num_channels", channels), channels)
    for key, off in _OFF[name].items():
        faults.expect(f"{where}.{key}", section.get(key, off) or off, off)
    if name != "processor" or kind == "graphtransformer":
        edges = list(section.get("sub_graph_edge_attributes") or [])
        faults.expect(f"{where}.sub_graph_edge_attributes", edges, ["edge_length", "edge_dirs"])
    mlp = section.get("mlp_implementation", "mlp")
    faults.expect(f"{where}.mlp_implementation", mlp, *_MLPS)
    kernels: dict[str, Any] = {"MLP": {"_target_": _MLPS.get(mlp, "")}}
    kernels |= _kernels(section.get("layer_kernels") or {}, where, faults)
    translated = {
        "num_heads": int(section["num_heads"]),
        "mlp_hidden_ratio": float(section["mlp_hidden_ratio"]),
        "qk_norm": bool(section.get("qk_norm")),
        "gradient_checkpointing": bool(section.get("gradient_checkpointing")),
        "layer_kernels": kernels,
    }
    if name == "processor":
        translated["num_layers"] = int(section["num_layers"])
        if kind == "transformer":
            translated |= {"window_size": section.get("window_size"), "node_order": "graph"}
    return translated


def _kernels(mapping: Mapping[str, Any], where: str, faults: Faults) -> dict[str, Any]:
    """Return the slots written out, with the constants that the peer's layers have by default."""
    kernels: dict[str, dict[str, Any]] = {
        "LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-5},
        "Linear": {"_target_": "torch.nn.Linear"},
        "Activation": {"_target_": "torch.nn.GELU"},
        "QueryNorm": {"_target_": "etesian.kernels.norms.AutocastLayerNorm", "eps": 1e-5, "bias": False},
        "KeyNorm": {"_target_": "etesian.kernels.norms.AutocastLayerNorm", "eps": 1e-5, "bias": False},
    }
    for slot, entry in mapping.items():
        key, target = f"{where}.layer_kernels.{slot}", (entry or {}).get("_target_")
        arguments = {k: v for k, v in (entry or {}).items() if k not in ("_target_", "_partial_")}
        if slot in _KERNELS:
            faults.expect(f"{key}._target_", target, *_KERNELS[slot])
            plain: dict[str, Any] = {k: v for k, v in kernels[slot].items() if k != "_target_"} | {
                "elementwise_affine": True
            }
            plain |= {"bias": slot not in ("QueryNorm", "KeyNorm")}
            for name, value in arguments.items():
                faults.expect(f"{key}.{name}", value, plain.get(name))
        elif slot == "Activation":
            if not str(target).startswith("torch.nn."):
                faults.refuse(f"{key}._target_", target, "a class of torch.nn")
            kernels[slot] = {"_target_": target, **arguments}
        else:
            faults.refuse(key, target, f"only {', '.join([*_KERNELS, 'Activation'])}")
    return kernels


def _residual(section: Mapping[str, Any] | None, faults: Faults) -> dict[str, Any]:
    target = (section or {}).get("_target_")
    faults.expect("model.residual._target_", target, f"{LAYERS}.residual.SkipConnection")
    return {"kind": "skip", "step": int((section or {}).get("step", -1))}


def translate_data(config: Mapping[str, Any], dataset: str, faults: Faults) -> dict[str, Any]:
    """Return the sections ``normalizer`` of the peer's ``data``; whatever else prepares the fields is refused."""
    processors = (_of_dataset(config, dataset) or {}).get("processors") or {}
    settings: dict[str, Any] = {}
    for name, entry in processors.items():
        target = (entry or {}).get("_target_")
        if target not in _NORMALIZERS:
            faults.refuse(f"data.processors.{name}._target_", target, f"{_NORMALIZERS[0]} alone")
            continue
        given = dict(entry.get("config") or {})
        if given.pop("remap", None):
            faults.refuse(f"data.processors.{name}.config.remap", entry["config"]["remap"], "no remap")
        default = given.pop("default", "none")
        methods = {"mean-std", "std", "max", "min-max", "none"}
        faults.expect(f"data.processors.{name}.config.default", default, *sorted(methods))
        for method in given:
            faults.expect(f"data.processors.{name}.config", method, *sorted(methods))
        settings = {"default": default, **{method: list(names or []) for method, names in given.items()}}
    if not processors:
        settings = {"default": "none"}
    faults.stop()
    return settings


def translate_bounds(
    config: Mapping[str, Any], dataset: str, scale: Mapping[str, float], offset: Mapping[str, float], faults: Faults
) -> list[dict[str, Any]]:
    """Return ``model.bounding``: the peer's bounds are of normalised values, those here in physical units.

    Parameters
    ----------
    config : mapping
        The peer's section ``model``.
    dataset : str
        Name of its dataset.
    scale, offset : mapping
        ``normalised = physical * scale + offset`` of each output.
    faults : Faults
        Takes what has no counterpart.
    """
    bounds: list[dict[str, Any]] = []
    for number, entry in enumerate(_of_dataset(config.get("bounding"), dataset) or []):
        key, target = f"model.bounding[{number}]", str(entry.get("_target_")).removeprefix(f"{LAYERS}.bounding.")
        names = [name for name in entry.get("variables") or [] if name in scale]
        if target == "ReluBounding":
            bounds += [{"kind": "relu", "variables": [n], "min_val": _physical(0.0, n, scale, offset)} for n in names]
        elif target == "HardtanhBounding":
            for name in names:
                low, high = (_physical(entry[end], name, scale, offset) for end in ("min_val", "max_val"))
                bounds.append({"kind": "hardtanh", "variables": [name], "min_val": low, "max_val": high})
        elif target == "FractionBounding" and _same_units([*names, entry["total_var"]], scale, offset):
            ends = {end: float(entry[end]) for end in ("min_val", "max_val")}
            bounds.append({"kind": "fraction", "variables": names, "total_variable": entry["total_var"], **ends})
        else:
            allowed = (
                "ReluBounding, HardtanhBounding; FractionBounding of variables with the total's scale and no offset"
            )
            faults.refuse(f"{key}._target_", entry.get("_target_"), allowed)
    faults.stop()
    return bounds


def _physical(value: float, name: str, scale: Mapping[str, float], offset: Mapping[str, float]) -> float:
    return float((np.float64(value) - offset[name]) / scale[name]) + 0.0


def _same_units(names: list[str], scale: Mapping[str, float], offset: Mapping[str, float]) -> bool:
    known = all(name in scale for name in names)
    return known and len({scale[name] for name in names}) == 1 and not any(offset[name] for name in names)


def _of_dataset(section: Any, dataset: str) -> Any:
    """Return what a section has for a dataset: under ``datasets``, or the section itself."""
    if isinstance(section, Mapping) and "datasets" in section:
        return section["datasets"].get(dataset)
    return section
