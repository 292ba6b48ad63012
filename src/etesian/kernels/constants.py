"""What the families are: formula, constants, parameters; and how each known kernel has the constants.

A constant is part of the mathematics: two kernels with another eps are two functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

UNKNOWN = "unknown"
"""A constant of which nothing tells; equal to none."""

DTYPE_EPSILON = "epsilon of the dtype"
"""The eps of ``torch.nn.RMSNorm`` where none is given: the machine epsilon of the input's dtype."""


@dataclass(frozen=True)
class Argument:
    """A constant that an argument of the kernel sets.

    Attributes
    ----------
    name : str
        Name of the argument.
    default : object
        Its value where it is not given; :data:`UNKNOWN` where only the signature tells.
    meanings : mapping
        Value of the argument to value of the constant, where the two differ.
    """

    name: str
    default: Any = UNKNOWN
    meanings: Mapping[Any, Any] = field(default_factory=lambda: MappingProxyType({}))

    def with_default(self, default: Any) -> Argument:
        """Return the same with the default of a signature; an argument without one keeps what is declared."""
        return self if default is inspect.Parameter.empty else replace(self, default=default)

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """Return the constant under these arguments."""
        return self._mean(arguments.get(self.name, self.default))

    def value_for(self, constant: Any) -> Any:
        """Return what the argument has to be for a constant to have a value."""
        return next((value for value, meaning in self.meanings.items() if meaning == constant), constant)

    def _mean(self, value: Any) -> Any:
        return next((meaning for given, meaning in self.meanings.items() if given == value), value)


Reader = Any
"""A value, or an :class:`Argument`."""


@dataclass(frozen=True)
class Family:
    """The mathematics that kernels have in common.

    Attributes
    ----------
    name : str
        Its name, as records have it.
    formula : str
        The mathematics, one line.
    constants : mapping
        Names of the constants that must agree, with the value of a kernel that has no such argument.
    parameters : tuple of str
        Names in the state dict of what a layer learns.
    plain : str or None
        Path of a kernel that needs PyTorch alone; what an exported checkpoint has.
    reference : str or None
        Path of the formula written out; what other kernels are compared with.
    """

    name: str
    formula: str
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    parameters: tuple[str, ...] = ()
    plain: str | None = None
    reference: str | None = None


_LINEARS = ("linear_in.weight", "linear_in.bias", "linear_out.weight", "linear_out.bias")
_GATE = "W_out (act(W_gate x + b_gate) (W_value x + b_value)) + b_out, act = "
_FORMULAS = "etesian.kernels.formulas"
_ATTENTION = "etesian.kernels.attention"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "linear", "W x + b", {"bias": True}, ("weight", "bias"), "torch.nn.Linear", f"{_FORMULAS}.Linear",
        ),
        Family(
            "layer_norm",
            "(x - mean(x)) / sqrt(var(x) + eps) (weight_offset + weight) + bias",
            {"eps": UNKNOWN, "elementwise_affine": True, "bias": True, "weight_offset": 0.0},
            ("weight", "bias"),
            "torch.nn.LayerNorm",
            f"{_FORMULAS}.LayerNorm",
        ),
        Family(
            "rms_norm",
            "x / sqrt(mean(x^2) + eps) (weight_offset + weight)",
            {"eps": UNKNOWN, "elementwise_affine": True, "weight_offset": 0.0},
            ("weight",),
            "torch.nn.RMSNorm",
            f"{_FORMULAS}.RMSNorm",
        ),
        Family("gelu", "x Phi(x), or its approximation by tanh", {"approximate": "none"}, (), "torch.nn.GELU",
               f"{_FORMULAS}.GELU"),
        Family("silu", "x / (1 + exp(-x))", {}, (), "torch.nn.SiLU", f"{_FORMULAS}.SiLU"),
        Family("relu", "max(x, 0)", {}, (), "torch.nn.ReLU", f"{_FORMULAS}.ReLU"),
        Family("mlp", "W_out act(W_in x + b_in) + b_out, act of the slot Activation", {}, _LINEARS,
               "etesian.kernels.mlp.MLP", "etesian.kernels.mlp.MLP"),
        Family("glu", _GATE + "sigmoid", {}, _LINEARS, "etesian.kernels.glu.GLU", "etesian.kernels.glu.GLU"),
        Family("swiglu", _GATE + "silu", {}, _LINEARS, "etesian.kernels.glu.SwiGLU", "etesian.kernels.glu.SwiGLU"),
        Family("geglu", _GATE + "gelu", {"approximate": "none"}, _LINEARS, "etesian.kernels.glu.GeGLU",
               "etesian.kernels.glu.GeGLU"),
        Family("reglu", _GATE + "relu", {}, _LINEARS, "etesian.kernels.glu.ReGLU", "etesian.kernels.glu.ReGLU"),
        Family("graph_attention", "sum over edges into i of softmax(q_i (k_j + e) / sqrt(C)) (v_j + e), e = W a + b",
               {}, (), "etesian.kernels.factored.FactoredGraphAttention",
               "etesian.kernels.reference.ReferenceGraphAttention"),
        Family("attention", "sum over positions j within the window of i of softmax(q_i k_j / sqrt(C)) v_j", {}, (),
               f"{_ATTENTION}.sdpa.ScaledDotProductAttention", f"{_ATTENTION}.reference.ReferenceAttention"),
    )
}  # fmt: skip
"""The families that are known, by name."""

_EPS_5, _EPS_6 = Argument("eps", 1e-5), Argument("eps", 1e-6)
_ZERO_CENTERED = Argument("zero_centered_gamma", False, {False: 0.0, True: 1.0})

OWN_CONSTANTS: Mapping[str, Mapping[str, Reader]] = {
    "torch.nn.Linear": {"bias": Argument("bias", True)},
    "torch.nn.LayerNorm": {
        "eps": _EPS_5, "elementwise_affine": Argument("elementwise_affine", True), "bias": Argument("bias", True),
    },
    "torch.nn.RMSNorm": {
        "eps": Argument("eps", None, {None: DTYPE_EPSILON}), "elementwise_affine": Argument("elementwise_affine", True),
    },
    "torch.nn.GELU": {"approximate": Argument("approximate", "none")},
    "etesian.kernels.norms.AutocastLayerNorm": {
        "eps": _EPS_5, "elementwise_affine": Argument("elementwise_affine", True), "bias": Argument("bias", True),
    },
    "etesian.kernels.norms.AutocastRMSNorm": {
        "eps": _EPS_6, "elementwise_affine": Argument("elementwise_affine", True),
    },
    "etesian.kernels.glu.GeGLU": {"approximate": Argument("approximate", "none")},
    "etesian.kernels.liger.LigerGeGLU": {"approximate": "tanh"},
    "etesian.kernels.liger.LigerLayerNorm": {"eps": _EPS_5, "bias": True},
    "liger_kernel.transformers.layer_norm.LigerLayerNorm": {"eps": _EPS_6, "bias": True},
    "liger_kernel.transformers.rms_norm.LigerRMSNorm": {
        "eps": _EPS_6, "elementwise_affine": Argument("elementwise_affine", True),
        "weight_offset": Argument("offset", 0.0),
    },
    "transformer_engine.pytorch.LayerNorm": {"eps": _EPS_5, "weight_offset": _ZERO_CENTERED},
    "transformer_engine.pytorch.RMSNorm": {"eps": _EPS_5, "weight_offset": _ZERO_CENTERED},
    "transformer_engine.pytorch.Linear": {"bias": Argument("bias", True)},
}  # fmt: skip
"""How the known kernels have the constants of their families; the defaults are those of the libraries.

A constant that is left out is the argument of that name, where the kernel has one, else what is usual in the family.
Liger's own layer norm has a bias whatever its argument ``bias`` says, which settles how it begins. What changes
rounding alone (Liger's ``casting_mode``) or the first weights is no constant.
"""

PLAIN = frozenset(
    {
        "torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.RMSNorm", "torch.nn.GELU", "torch.nn.SiLU", "torch.nn.ReLU",
        "etesian.kernels.norms.AutocastLayerNorm", "etesian.kernels.norms.AutocastRMSNorm", "etesian.kernels.mlp.MLP",
        "etesian.kernels.glu.GLU",
        "etesian.kernels.glu.SwiGLU", "etesian.kernels.glu.GeGLU", "etesian.kernels.glu.ReGLU",
        "etesian.kernels.reference.ReferenceGraphAttention", "etesian.kernels.factored.FactoredGraphAttention",
        f"{_ATTENTION}.reference.ReferenceAttention", f"{_ATTENTION}.sdpa.ScaledDotProductAttention",
    }
)  # fmt: skip
"""Kernels that need PyTorch alone: an exported checkpoint keeps them as they are."""
