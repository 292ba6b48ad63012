"""``model.layer_kernels``: the layers of each component, with the constants that they have there by default."""

from __future__ import annotations

import copy
from typing import Any

from etesian.migrate.theirs import Theirs

_NORM: dict[str, Any] = {"_target_": "etesian.kernels.norms.AutocastLayerNorm", "eps": 1e-5, "bias": False}
_PLAIN: dict[str, dict[str, Any]] = {
    "LayerNorm": {"_target_": "torch.nn.LayerNorm", "eps": 1e-5},
    "Linear": {"_target_": "torch.nn.Linear"},
    "Activation": {"_target_": "torch.nn.GELU"},
    "QueryNorm": _NORM,
    "KeyNorm": _NORM,
    "MLP": {"_target_": "etesian.kernels.mlp.MLP"},
    "GraphAttention": {"_target_": "etesian.kernels.factored.FactoredGraphAttention"},
    "Attention": {"_target_": "etesian.kernels.attention.sdpa.ScaledDotProductAttention"},
}
_MLPS = {"mlp": "etesian.kernels.mlp.MLP", "glu": "etesian.kernels.glu.GLU", "swiglu": "etesian.kernels.glu.SwiGLU",
         "geglu": "etesian.kernels.glu.GeGLU", "reglu": "etesian.kernels.glu.ReGLU"}  # fmt: skip
_COMPONENTS = ("encoder", "processor", "decoder")
_AUTOCAST = ("anemoi.models.layers.normalization.AutocastLayerNorm", "anemoi.models.layers.utils.AutocastLayerNorm")


def translate_kernels(theirs: Theirs) -> None:
    """Translate the layers of all components; what they share goes into ``model.layer_kernels``."""
    filled = {name: _component(theirs, f"model.{name}") for name in _COMPONENTS}
    shared = {slot: entry for slot, entry in filled["encoder"].items()
              if all(slots[slot] == entry for slots in filled.values())}  # fmt: skip
    theirs.set("model.layer_kernels", shared | {s: _PLAIN[s] for s in ("GraphAttention", "Attention")})
    for name, slots in filled.items():
        theirs.set(f"model.{name}.layer_kernels", {slot: entry for slot, entry in slots.items() if slot not in shared})
    theirs.imply("model.layer_kernels", "read through the components")


def _component(theirs: Theirs, key: str) -> dict[str, dict[str, Any]]:
    slots = copy.deepcopy({slot: entry for slot, entry in _PLAIN.items() if "Attention" not in slot})
    mlp = theirs.value(f"{key}.mlp_implementation", "mlp")
    if mlp not in _MLPS:
        theirs.refuse(f"{key}.mlp_implementation", ", ".join(_MLPS))
    else:
        slots["MLP"] = {"_target_": _MLPS[mlp]}
        theirs.carry_as(f"{key}.mlp_implementation", "model.layer_kernels.MLP", _MLPS[mlp])
    if theirs.has(f"{key}.activation"):
        name = str(theirs.value(f"{key}.activation"))
        slots["Activation"] = {"_target_": name if "." in name else f"torch.nn.{name}"}
        theirs.carry_as(f"{key}.activation", "model.layer_kernels.Activation", slots["Activation"]["_target_"])
    for slot in theirs.names(f"{key}.layer_kernels"):
        _slot(theirs, f"{key}.layer_kernels.{slot}", slot, slots)
    return slots


def _slot(theirs: Theirs, key: str, slot: str, slots: dict[str, dict[str, Any]]) -> None:
    given = dict(theirs.section(key))
    path, arguments = str(given.pop("_target_", "")), given
    arguments.pop("_partial_", None)
    if slot not in _PLAIN or "Attention" in slot:
        theirs.refuse(key, ", ".join(name for name in _PLAIN if "Attention" not in name))
        return
    if path in _AUTOCAST:
        path = _NORM["_target_"]
        arguments = {"eps": 1e-5, **arguments}
    elif path.startswith("anemoi."):
        theirs.refuse(f"{key}._target_", f"a class outside of anemoi-models, or {_AUTOCAST[0]}")
        theirs.drop(key, "refused")
        return
    elif path == "torch.nn.LayerNorm":
        arguments = {"eps": 1e-5, **arguments}
    slots[slot] = {"_target_": path, **arguments}
    theirs.carry_as(key, f"model.layer_kernels.{slot}", slots[slot])
