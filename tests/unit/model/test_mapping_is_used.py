"""Every norm, linear, activation, MLP and attention that the model runs comes from the mapping."""

from __future__ import annotations

from collections import Counter

import marker_kernels
import torch
from marker_kernels import MAPPING, Marker
from small_model import make_model, make_settings
from torch import nn
from torch.overrides import TorchFunctionMode

from etesian.model.features import TrainableFeatures

LAYERS = {
    nn.functional.linear,
    nn.functional.layer_norm,
    nn.functional.rms_norm,
    nn.functional.gelu,
    nn.functional.silu,
    nn.functional.relu,
    nn.functional.scaled_dot_product_attention,
    torch.matmul,
    torch.bmm,
    torch.einsum,
    torch.softmax,
}


class Bypasses(TorchFunctionMode):
    """Notes each call of a layer's function that no kernel of the mapping made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.inside = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in LAYERS:
            if Marker.depth:
                self.inside += 1
            else:
                self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def build() -> nn.Module:
    block = {"num_heads": 2, "qk_norm": True}
    return make_model(
        make_settings(layer_kernels=MAPPING, encoder=block, processor=block | {"num_layers": 3}, decoder=block)
    )


def test_every_layer_is_made_and_called_through_the_mapping() -> None:
    model = build()
    with Bypasses() as bypasses:
        model(torch.randn(1, 2, 1, 14, 3))
    assert bypasses.inside > 0
    assert bypasses.seen == []

    calls: Counter[str] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, Marker):
            calls[type(module).__name__] += module.calls
            fused = name.endswith(".edge")  # its weights are used inside the graph attention
            assert module.calls == (0 if fused else 1), name
    blocks = 5
    assert calls == {
        "MarkerLinear": blocks * (5 + 2) + 3 + 1,  # q, k, v, own, projection, MLP; embeddings; output head
        "MarkerLayerNorm": blocks * 2 + 2 + 1,  # source norms of encoder and decoder; output head
        "MarkerHeadNorm": blocks * 2,
        "MarkerActivation": blocks,
        "MarkerMLP": blocks,
        "MarkerGraphAttention": blocks,
    }


def test_every_parameter_belongs_to_a_kernel_or_is_a_trainable_feature() -> None:
    for name, module in build().named_modules():
        if list(module.parameters(recurse=False)):
            assert isinstance(module, Marker | TrainableFeatures), name


def test_a_component_takes_its_own_slots() -> None:
    own = {"layer_kernels": {"LayerNorm": {"_target_": "torch.nn.RMSNorm", "eps": 1e-6}}}
    model = make_model(
        make_settings(
            layer_kernels=MAPPING, processor={"num_heads": 2, "num_layers": 2} | own, decoder={"num_heads": 2}
        )
    )
    kinds = {
        component: {type(m) for m in model.get_submodule(component).modules() if "Norm" in type(m).__name__}
        for component in ("encoder", "processor", "decoder")
    }
    assert kinds == {
        "encoder": {marker_kernels.MarkerLayerNorm},
        "processor": {nn.RMSNorm},
        "decoder": {marker_kernels.MarkerLayerNorm},
    }
    assert model.processor.blocks[0].norm_mlp.eps == 1e-6
