"""The slots of ``model.layer_kernels``: how the model builds and calls what fills them, and their defaults.

A slot is built by position wherever libraries disagree on a name: what `torch` calls ``normalized_shape`` others call
``hidden_size``. The arguments of the config are passed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from etesian.errors import Problem, did_you_mean


@dataclass(frozen=True)
class Slot:
    """One kind of layer that an experiment may choose.

    Attributes
    ----------
    name : str
        Key in the mapping.
    positional : tuple of str
        What the model passes by position when it builds the layer; the names are for messages only.
    keywords : tuple of str
        What the model may pass by name; the target has to take each of them.
    call : str
        What the built layer is called with, and what it returns.
    target : str
        The default, where the mapping leaves the slot out.
    arguments : mapping
        Arguments of the default.
    settable : tuple of str
        Those of `keywords` that the config may set instead of the model.
    """

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    call: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    settable: tuple[str, ...] = ()

    @property
    def construction(self) -> str:
        """How the model builds the layer, as text: ``(in_features, out_features, bias=...)``."""
        return f"({', '.join([*self.positional, *(f'{name}=...' for name in self.keywords)])})"


_HEAD_NORM = MappingProxyType({"eps": 1e-5, "bias": False})

GRAPH_ATTENTION_CALL = (
    "(query [N_dst, H, C], key [N_src, H, C], value [N_src, H, C], edge_attr [M, D], edge_weight [H*C, D], "
    "edge_bias [H*C] or None, edges) -> [N_dst, H, C]"
)
"""The graph-attention contract.

``edges`` is an :class:`etesian.graph.edges.Edges`. With ``e_m = edge_weight a_m + edge_bias`` for edge m from j to i,
``s_m = q_i . (k_j + e_m) / sqrt(C)`` for each head, and alpha the softmax of s over the edges that lead into i,
``out_i = sum_m alpha_m (v_j + e_m)``. A node that no edge leads to gets 0, without the bias too. A class with an
attribute ``reads_tiles = True`` gets edges whose ``tiles`` are there (:class:`etesian.graph.tiles.EdgeTiles`).
"""

ATTENTION_CALL = "(query, key, value [B, H, N, C] each) -> [B, H, N, C]"
"""The contract of attention among the N positions of each batch entry and head.

``s_ij = q_i . k_j / sqrt(C)``; alpha the softmax of s over the positions j that i sees: ``|i - j| <= window_size``, or
all where that is None; ``out_i = sum_j alpha_ij v_j``, in the dtype of the value.
"""

SLOTS: Mapping[str, Slot] = MappingProxyType(
    {
        slot.name: slot
        for slot in (
            Slot(
                name="Linear",
                positional=("in_features", "out_features"),
                keywords=("bias",),
                call="[..., in] -> [..., out]",
                target="torch.nn.Linear",
                settable=("bias",),
            ),
            Slot(
                name="LayerNorm",
                positional=("num_channels",),
                keywords=(),
                call="[..., C] -> [..., C]",
                target="torch.nn.LayerNorm",
                arguments=MappingProxyType({"eps": 1e-5}),
            ),
            Slot(
                name="Activation",
                positional=(),
                keywords=(),
                call="the same shape",
                target="torch.nn.GELU",
            ),
            Slot(
                name="QueryNorm",
                positional=("head_channels",),
                keywords=(),
                call="[..., C_head] -> [..., C_head]",
                target="etesian.kernels.norms.AutocastLayerNorm",
                arguments=_HEAD_NORM,
            ),
            Slot(
                name="KeyNorm",
                positional=("head_channels",),
                keywords=(),
                call="[..., C_head] -> [..., C_head]",
                target="etesian.kernels.norms.AutocastLayerNorm",
                arguments=_HEAD_NORM,
            ),
            Slot(
                name="MLP",
                positional=("in_features", "hidden_features", "out_features"),
                keywords=("layer_kernels",),
                call="[..., in] -> [..., out]",
                target="etesian.kernels.mlp.MLP",
            ),
            Slot(
                name="GraphAttention",
                positional=("num_heads", "head_channels"),
                keywords=(),
                call=GRAPH_ATTENTION_CALL,
                target="etesian.kernels.factored.FactoredGraphAttention",
            ),
            Slot(
                name="Attention",
                positional=("num_heads", "head_channels"),
                keywords=("window_size",),
                call=ATTENTION_CALL,
                target="etesian.kernels.attention.sdpa.ScaledDotProductAttention",
            ),
        )
    }
)
"""Slot by name, in the order of the table that a run prints."""


def unknown_slot(name: str, where: str) -> Problem:
    """Return the problem of a key of ``layer_kernels`` that names no slot."""
    return Problem(f"unknown layer kernel slot {name!r}", where, ", ".join(SLOTS), did_you_mean(name, SLOTS))
