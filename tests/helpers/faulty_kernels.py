"""Kernels that can be built and are wrong in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etesian.kernels.attention.reference import ReferenceAttention
from etesian.kernels.factored import FactoredGraphAttention


class Scale(nn.Module):
    """A norm that is no norm, but that nothing is wrong with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class NoParameters(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)


class FrozenParameter(Scale):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.weight.requires_grad_(False)


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


class InPlaceNorm(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0) * self.weight


class WithoutChannels(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * self.eps


class FailsInBuilding(Scale):
    def __init__(self, width: int) -> None:
        raise AssertionError("width is odd")


class FailsForward(Scale):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no driver")


class FailsOnManyRows(Scale):
    """Runs on what the trial before a run gives it, and on no real grid."""

    def forward(self, x):
        if x.shape[0] > 24:
            raise RuntimeError(f"too many rows:\n  {x.shape[0]}")
        return super().forward(x)


class _RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("only forward")


class FailsBackward(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return _RaisesBackward.apply(super().forward(x))


class OtherShape(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., :-1]


class Tuple(Scale):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


class OtherDtype(Scale):
    """Computes and returns float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class Halves(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).half()


class NotANumber(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sqrt()


class NoGradientAtZero(Scale):
    """Finite forward, with an infinite slope."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * 0).sqrt() + x)


class Detached(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class InputDetached(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


class UnusedParameter(Scale):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.spare = nn.Parameter(torch.ones(1))


class Float32Only(Scale):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError(f"takes float32 only, not {x.dtype}")
        return super().forward(x)


class FailsAsActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no activation")


class AttentionWithoutKeys(FactoredGraphAttention):
    """Passes no gradient to the keys."""

    def forward(self, query, key, *others):
        return super().forward(query, key.detach(), *others)


class AttentionInPlace(FactoredGraphAttention):
    def forward(self, query, key, *others):
        return super().forward(query, key.mul_(2.0), *others)


class AttentionWithoutItsTiles(FactoredGraphAttention):
    """Reads the tiles without asking for them."""

    def forward(self, *inputs):
        if inputs[-1].tiles is None:
            raise ValueError("the edges are not in tiles")
        return super().forward(*inputs)


class AttentionOverTiles(AttentionWithoutItsTiles):
    reads_tiles = True


def attention_over_tiles(num_heads, head_channels) -> AttentionOverTiles:
    return AttentionOverTiles(num_heads, head_channels)


class AttentionOfFewHeads(FactoredGraphAttention):
    def forward(self, query, *others):
        if query.shape[1] > 2:
            raise ValueError(f"{query.shape[1]} heads are too many")
        return super().forward(query, *others)


class SelfAttentionWithoutKeys(ReferenceAttention):
    def forward(self, query, key, value):
        return super().forward(query, key.detach(), value)


class SelfAttentionOfNodesFirst(ReferenceAttention):
    """Mistakes the axis of the heads for that of the nodes."""

    def forward(self, query, key, value):
        return super().forward(query, key, value).transpose(1, 2)


class SelfAttentionOfWindow7(ReferenceAttention):
    def __init__(self, num_heads, head_channels, window_size):
        if window_size != 7:
            raise ValueError(f"a window of {window_size} is none of mine")
        super().__init__(num_heads, head_channels, window_size)


class SelfAttentionOfPackedHeads(ReferenceAttention):
    """Relies on heads that lie behind the nodes in memory, as the model has them."""

    def forward(self, query, key, value):
        query.transpose(1, 2).view(query.shape[0] * query.shape[2], -1)
        return super().forward(query, key, value)


class LinearWithBiasOnly(nn.Linear):
    def __init__(self, in_features, out_features, bias=True):
        if not bias:
            raise ValueError("a bias it has to be")
        super().__init__(in_features, out_features)


class SelfAttentionWithoutWindow(ReferenceAttention):
    def __init__(self, num_heads, head_channels, window_size=None):
        super().__init__(num_heads, head_channels)
