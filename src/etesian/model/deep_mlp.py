"""An MLP of more than one hidden layer with a norm behind it: what graph networks are made of."""

from __future__ import annotations

from torch import Tensor, nn

from etesian.kernels.resolve import LayerKernels


class DeepMLP(nn.Module):
    """Linear and Activation, once or more, then what the slot ``MLP`` makes, then a norm.

    With the default ``MLP`` that is Linear, Activation, Linear, Activation, Linear, LayerNorm, and more of the first
    two with `extra_layers`.

    Parameters
    ----------
    in_features, hidden_features, out_features : int
        Widths.
    extra_layers : int
        Hidden layers beyond the first two.
    kernels : LayerKernels
        Where every layer comes from.
    """

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int, extra_layers: int, kernels: LayerKernels
    ) -> None:
        super().__init__()
        self.first = hidden_layers(in_features, hidden_features, 1 + extra_layers, kernels)
        self.mlp = kernels.MLP(hidden_features, hidden_features, out_features, layer_kernels=kernels)
        self.norm = kernels.LayerNorm(out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out], in the dtype that the MLP returns."""
        y = self.mlp(self.first(x))
        normed: Tensor = self.norm(y).to(y.dtype)  # under autocast a norm may return a wider one
        return normed


def hidden_layers(in_features: int, hidden_features: int, count: int, kernels: LayerKernels) -> nn.Sequential:
    """Return that many times Linear and Activation."""
    layers: list[nn.Module] = []
    for number in range(count):
        layers.append(kernels.Linear(hidden_features if number else in_features, hidden_features))
        layers.append(kernels.Activation())
    return nn.Sequential(*layers)
