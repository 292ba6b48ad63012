"""Families of kernels: the mathematics, its constants and the names of its parameters.

Two kernels of one family with equal constants are interchangeable; kernels of two families never are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etesian.errors import did_you_mean
from etesian.kernels.arguments import defaults_of
from etesian.kernels.constants import FAMILIES, OWN_CONSTANTS, Argument, Family, Reader
from etesian.kernels.signatures import leads_to, own_path

LINEAR = "linear"
"""y = x W^T + b, with parameters ``weight`` (out, in) and ``bias`` (out,) or None."""

GATED_MLPS = frozenset({"glu", "swiglu", "geglu", "reglu"})
"""MLPs that have an activation of their own and leave the slot ``Activation`` alone."""

_FAMILIES: dict[str, str] = {
    "torch.nn.Linear": LINEAR,
    "torch.nn.LayerNorm": "layer_norm",
    "torch.nn.RMSNorm": "rms_norm",
    "torch.nn.GELU": "gelu",
    "torch.nn.SiLU": "silu",
    "torch.nn.ReLU": "relu",
    "etesian.kernels.norms.AutocastLayerNorm": "layer_norm",
    "etesian.kernels.norms.AutocastRMSNorm": "rms_norm",
    "etesian.kernels.liger.LigerLayerNorm": "layer_norm",
    "liger_kernel.transformers.layer_norm.LigerLayerNorm": "layer_norm",
    "liger_kernel.transformers.rms_norm.LigerRMSNorm": "rms_norm",
    "transformer_engine.pytorch.LayerNorm": "layer_norm",
    "transformer_engine.pytorch.RMSNorm": "rms_norm",
    "transformer_engine.pytorch.Linear": LINEAR,
    "etesian.kernels.mlp.MLP": "mlp",
    "etesian.kernels.glu.GLU": "glu",
    "etesian.kernels.glu.SwiGLU": "swiglu",
    "etesian.kernels.glu.GeGLU": "geglu",
    "etesian.kernels.glu.ReGLU": "reglu",
    "etesian.kernels.liger.LigerSwiGLU": "swiglu",
    "etesian.kernels.liger.LigerGeGLU": "geglu",
    "etesian.kernels.reference.ReferenceGraphAttention": "graph_attention",
    "etesian.kernels.factored.FactoredGraphAttention": "graph_attention",
    "etesian.kernels.pyg.PygGraphAttention": "graph_attention",
    "etesian.kernels.triton_kernels.attention.TritonGraphAttention": "graph_attention",
    "etesian.kernels.attention.reference.ReferenceAttention": "attention",
    "etesian.kernels.attention.sdpa.ScaledDotProductAttention": "attention",
    "etesian.kernels.attention.flex.FlexAttention": "attention",
    "etesian.kernels.attention.flash.FlashAttention": "attention",
}


_OWN: set[str] = set()
"""Families that kernels of the user's made."""

_CONSTANTS: dict[str, dict[str, Reader]] = {target: dict(readers) for target, readers in OWN_CONSTANTS.items()}


def register_family(target: str, family: str, constants: Mapping[str, Any] | None = None, *, new: bool = False) -> None:
    """Declare the family of a target, given by its dotted path.

    Parameters
    ----------
    target : str
        The path, as a config writes it.
    family : str
        A family of :data:`etesian.kernels.constants.FAMILIES`, or one that was made by `new`.
    constants : mapping, optional
        How the kernel has the constants of the family: by constant, a value, or an
        :class:`~etesian.kernels.constants.Argument` that sets it. What is left out is the argument of that name.
    new : bool
        Make a family of your own, which is a name alone: kernels of it have no constants that could be compared.

    Raises
    ------
    ValueError
        If there is no such family, or one that is to be new is known; if the target has another family already; if a
        constant is none of the family.
    """
    held = _FAMILIES.get(target, family)
    if held != family:
        raise ValueError(f"{target} is of family {held!r} already")
    known = family_named(family)
    if new and known is not None:
        raise ValueError(f"family {family!r} is known already: leave out new=True")
    if known is None and not new and family not in _OWN:
        names = [*FAMILIES, *sorted(_OWN)]
        meant = f"{found} " if (found := did_you_mean(family, names)) else ""
        raise ValueError(f"no family {family!r}: {meant}there are {', '.join(names)}; new=True makes one")
    if unknown := set(constants or {}) - set(known.constants if known else {}):
        raise ValueError(f"family {family!r} has no constant {', '.join(sorted(unknown))}")
    _FAMILIES[target] = family
    if new:
        _OWN.add(family)
    if constants is not None:
        _CONSTANTS[target] = dict(constants)


def family_named(name: str) -> Family | None:
    """Return what a family is, or None for one that is only a name."""
    return FAMILIES.get(name)


def readers_of(target: str, family: Family, resolved: object | None = None) -> dict[str, Reader]:
    """Return where each constant of a kernel comes from: a value, or the argument that sets it.

    Parameters
    ----------
    target : str
        The kernel's path.
    family : Family
        Its family.
    resolved : object, optional
        What the path leads to, where it is installed: its signature has the defaults.
    """
    declared = next((_CONSTANTS[path] for path in _paths(target, resolved) if path in _CONSTANTS), {})
    signature = defaults_of(resolved)
    readers: dict[str, Reader] = {}
    for name, usual in family.constants.items():
        reader = declared.get(name, Argument(name) if name in signature else usual)
        if isinstance(reader, Argument) and reader.name in signature:
            reader = reader.with_default(signature[reader.name])
        readers[name] = reader
    return readers


def constants_of(
    target: str, family: str, arguments: Mapping[str, Any], resolved: object | None = None
) -> dict[str, Any]:
    """Return the constants of a kernel: what its arguments, its defaults and its family settle.

    Returns
    -------
    dict
        By constant; :data:`~etesian.kernels.constants.UNKNOWN` where nothing tells. Empty for a family that is only
        a name.
    """
    known = family_named(family)
    if known is None:
        return {}
    found = {
        name: reader.read(arguments) if isinstance(reader, Argument) else reader
        for name, reader in readers_of(target, known, resolved).items()
    }
    if found.get("elementwise_affine") is False:  # nothing is learnt: what else there may be of it is not there
        found |= {name: False for name in ("bias",) if name in found}
        found |= {name: 0.0 for name in ("weight_offset",) if name in found}
    return found


def family_of(target: str, resolved: object | None = None) -> str:
    """Return the family of a target, ``custom:<path>`` where none is declared.

    Parameters
    ----------
    target : str
        The dotted path as the config writes it.
    resolved : object, optional
        What the path leads to: a class that is written by a second path (``torch.nn.modules.linear.Linear``) is
        found by the object, never by a base class: a subclass may compute anything. Nor by the names that it only
        bears: ``functools.wraps`` gives a wrapper those of what it wraps.
    """
    return next((_FAMILIES[path] for path in _paths(target, resolved) if path in _FAMILIES), f"custom:{target}")


def _paths(target: str, resolved: object | None) -> list[str]:
    """Return the paths under which a target may be declared: that of the config, and those that lead to it too."""
    if resolved is None:
        return [target, _short_torch_path(target)]
    own = own_path(resolved)
    if own is None:
        return [target]
    short = _short_torch_path(own)
    module, _, name = short.rpartition(".")
    return [target, own, *([short] if short != own and leads_to(module, name, resolved) else [])]


def _short_torch_path(path: str) -> str:
    """Return ``torch.nn.X`` for ``torch.nn.modules.file.X``."""
    parts = path.split(".")
    return f"torch.nn.{parts[-1]}" if parts[:3] == ["torch", "nn", "modules"] and len(parts) == 5 else path
