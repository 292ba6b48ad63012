"""Every norm, linear, activation, MLP and attention that the model runs comes from the mapping."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import marker_kernels
import pytest
import torch
from marker_kernels import MAPPING, Marker
from small_model import WITHOUT_HEADS, make_model, make_settings
from torch import nn
from torch.overrides import TorchFunctionMode

from etesian.commands.common import register_kinds
from etesian.kernels.slots import SLOTS
from etesian.model.features import TrainableFeatures
from etesian.schema.registry import kinds

register_kinds()

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


@dataclass(frozen=True)
class Case:
    """A kind of model: what its processor needs beside the rest, and the calls of one block of it and of the rest."""

    processor: dict[str, object]
    calls: dict[str, int]
    rest: dict[str, int]


ATTENDING = {
    "MarkerLinear": 2 * (5 + 2) + 3 + 1,  # q, k, v, own, projection, MLP; embeddings; output head
    "MarkerLayerNorm": 2 * 3 + 1,  # those of sources too; output head
    "MarkerHeadNorm": 2 * 2,
    "MarkerActivation": 2,
    "MarkerMLP": 2,
    "MarkerGraphAttention": 2,
}
"""Calls of encoder and decoder of kind graphtransformer."""


def deep_mlps(count: int) -> dict[str, int]:
    """Return the calls of MLPs of two hidden layers and a norm."""
    return {"MarkerLinear": 3 * count, "MarkerLayerNorm": count, "MarkerActivation": 2 * count, "MarkerMLP": count}


HEAD = {"MarkerLinear": 3, "MarkerActivation": 2}
"""Calls of the output head of a graph network, whose encoder updates two sets of nodes with one MLP."""

BLOCK = {"MarkerLayerNorm": 2, "MarkerHeadNorm": 2, "MarkerActivation": 1, "MarkerMLP": 1}
CASES = {
    "graphtransformer": Case({}, BLOCK | {"MarkerLinear": 5 + 2, "MarkerGraphAttention": 1}, ATTENDING),
    "transformer": Case({"window_size": 1}, BLOCK | {"MarkerLinear": 4 + 2, "MarkerAttention": 1}, ATTENDING),
    "gnn": Case({}, deep_mlps(2), Counter(deep_mlps(6 + 1 + 3)) + Counter(HEAD)),
}
CASES["pointwise"] = Case(
    {}, {"MarkerLayerNorm": 1, "MarkerMLP": 1, "MarkerLinear": 2, "MarkerActivation": 1}, ATTENDING
)
CASES["hierarchical"] = Case(  # three levels: blocks down and up on two of them, and two pairs of mappers
    {}, CASES["graphtransformer"].calls,
    Counter({name: 3 * count for name, count in ATTENDING.items()})
    + Counter({name: 4 * count for name, count in CASES["graphtransformer"].calls.items()}),
)  # fmt: skip
LAYERS_OF_PROCESSOR = 3


def build(kind: str, mapping: dict[str, dict[str, object]] = MAPPING, fused: bool = False) -> nn.Module:
    block = {"num_heads": 2, "qk_norm": True, "fuse_projections": fused}
    blocks = {name: {} if own in WITHOUT_HEADS else block for name, own in kinds("model")[kind].component_kinds.items()}
    blocks["processor"] = blocks["processor"] | {"num_layers": LAYERS_OF_PROCESSOR} | CASES[kind].processor
    return make_model(make_settings(kind, layer_kernels=mapping, **blocks))


def test_every_kind_and_every_slot_has_a_case() -> None:
    assert CASES.keys() == kinds("model").keys()
    assert MAPPING.keys() == SLOTS.keys()
    used = {name for case in CASES.values() for name in [*case.rest, *case.calls]}
    assert used == {entry["_target_"].removeprefix("marker_kernels.") for entry in MAPPING.values()}


@pytest.mark.parametrize("kind", kinds("model"))
def test_every_layer_is_made_and_called_through_the_mapping(kind: str) -> None:
    model = build(kind)
    with Bypasses() as bypasses:
        model(torch.randn(1, 2, 1, 14, 3))
    assert bypasses.inside > 0
    assert bypasses.seen == []

    calls: Counter[str] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, Marker):
            calls[type(module).__name__] += module.calls
            fused = name.endswith(".edge")  # its weights are used inside the graph attention
            twice = name.startswith("encoder.block.update.")  # for the hidden nodes and for the data nodes
            assert module.calls == (0 if fused else 2 if twice else 1), name
    in_processor = {name: LAYERS_OF_PROCESSOR * count for name, count in CASES[kind].calls.items()}
    assert calls == Counter(CASES[kind].rest) + Counter(in_processor)


JOINT = {"graphtransformer": ("query", "key", "value", "own"), "transformer": ("query", "key", "value")}
"""The layers that a block of the processor computes in one product where `fuse_projections` says so."""


@pytest.mark.parametrize("kind", JOINT)
def test_with_fused_projections_only_their_layers_are_not_called(kind: str) -> None:
    model = build(kind, fused=True)
    with Bypasses() as bypasses:
        model(torch.randn(1, 2, 1, 14, 3))
    assert bypasses.seen == ["linear"] * (2 * 2 + LAYERS_OF_PROCESSOR)  # two at each end: of destination, of source
    read = {
        name
        for name, module in model.named_modules()
        if isinstance(module, Marker) and module.calls == 0 and not name.endswith(".edge")
    }
    ends = {f"{part}.block.{name}" for part in ("encoder", "decoder") for name in ("query", "key", "value", "own")}
    inside = {f"processor.blocks.{i}.{name}" for i in range(LAYERS_OF_PROCESSOR) for name in JOINT[kind]}
    assert read == ends | inside


@pytest.mark.parametrize("kind", kinds("model"))
def test_a_linear_of_other_mathematics_counts_everywhere(kind: str) -> None:
    """A Linear that doubles its result is the plain one with doubled weights; the model may not tell them apart."""
    doubling = build(kind, {"Linear": {"_target_": "marker_kernels.DoublingLinear"}}).double()
    plain = build(kind, {}).double()
    with torch.no_grad():
        for parameter in doubling.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    plain.load_state_dict(doubling.state_dict())
    x = torch.randn(1, 2, 1, 14, 3, dtype=torch.float64)
    assert not torch.allclose(plain(x), doubling(x))
    layers = [name for name, module in doubling.named_modules() if type(module).__name__ == "DoublingLinear"]
    for name in layers:
        before = plain(x)
        if name.endswith(".edge"):
            continue  # the graph attention reads its weights and never calls it
        with torch.no_grad():
            for parameter in plain.get_submodule(name).parameters():
                parameter.mul_(2)
        assert not torch.equal(plain(x), before), name  # every one of them matters
    torch.testing.assert_close(plain(x), doubling(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", kinds("model"))
def test_every_parameter_belongs_to_a_kernel_or_is_a_trainable_feature(kind: str) -> None:
    for name, module in build(kind).named_modules():
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
