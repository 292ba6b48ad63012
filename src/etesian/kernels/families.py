"""Families of kernels: the mathematics, its constants and the names of its parameters.

Two kernels of one family with equal constants are interchangeable; kernels of two families never are.
"""

from __future__ import annotations

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
    "etesian.kernels.liger.LigerLayerNorm": "layer_norm",
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
    "etesian.kernels.attention.reference.ReferenceAttention": "attention",
    "etesian.kernels.attention.sdpa.ScaledDotProductAttention": "attention",
    "etesian.kernels.attention.flex.FlexAttention": "attention",
    "etesian.kernels.attention.flash.FlashAttention": "attention",
}


def register_family(target: str, family: str) -> None:
    """Declare the family of a target, given by its dotted path.

    Raises
    ------
    ValueError
        If the target has another family already.
    """
    held = _FAMILIES.setdefault(target, family)
    if held != family:
        raise ValueError(f"{target} is of family {held!r} already")


def family_of(target: str, resolved: object | None = None) -> str:
    """Return the family of a target, ``custom:<path>`` where none is declared.

    Parameters
    ----------
    target : str
        The dotted path as the config writes it.
    resolved : object, optional
        What the path leads to: a class that is written by a second path (``torch.nn.modules.linear.Linear``) is
        found by the object, never by a base class: a subclass may compute anything.
    """
    if target in _FAMILIES:
        return _FAMILIES[target]
    if resolved is not None:
        own = f"{getattr(resolved, '__module__', '')}.{getattr(resolved, '__qualname__', '')}"
        for path in (own, _short_torch_path(own)):
            if path in _FAMILIES:
                return _FAMILIES[path]
    return f"custom:{target}"


def _short_torch_path(path: str) -> str:
    """Return ``torch.nn.X`` for ``torch.nn.modules.file.X``."""
    parts = path.split(".")
    return f"torch.nn.{parts[-1]}" if parts[:3] == ["torch", "nn", "modules"] and len(parts) == 5 else path
