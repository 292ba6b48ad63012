"""A whole model computes what the same model made of the mappers and the processor of anemoi-models 0.19 computes.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.model.graphtransformer import GraphTransformerSettings
from peer_model import PeerModel, PeerOptions, PeerProcessor, take_weights, their_name
from step_models import OwnProcessor

PYG = PeerOptions(backend="pyg")
OPTIONS = {
    "plain": PYG,
    "checkpointed": replace(PYG, checkpointing=True),
    "sharded by edges": replace(PYG, mappers="edges"),
    "sharded by edges, checkpointed": replace(PYG, mappers="edges", checkpointing=True),
}


def random_weights(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return dict(model.named_parameters())


def make_pair(settings: GraphTransformerSettings, options: PeerOptions) -> tuple[nn.Module, nn.Module]:
    graph, fields = make_graph(), make_fields()
    mine = build_model(settings, graph, fields, resolve_kernels(settings, preset=None, overrides=[]))
    theirs = PeerModel(settings, graph, fields, options)
    take_weights(theirs, random_weights(mine))
    return mine, theirs


def assert_same(mine: nn.Module, theirs: nn.Module, x: Tensor, tolerance: float, *arguments: int) -> None:
    """Compare outputs, and gradients of the input and of every weight, relative to the largest of each."""
    results = []
    for model, rename in ((mine, their_name), (theirs, str)):
        leaf = x.clone().requires_grad_()
        out = model(leaf, *arguments)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x.dtype)
        own = {rename(name): weight for name, weight in model.named_parameters()}
        gradients = torch.autograd.grad(out, [leaf, *own.values()], cotangent)
        results.append({"output": out.detach(), **dict(zip(["input", *own], gradients, strict=True))})
    assert results[0].keys() == results[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in results[1].values())
    for name, one in results[0].items():
        other = results[1][name]
        assert one.shape == other.shape
        # A softmax takes no notice of the bias of keys: its gradient is what rounding leaves.
        scale = max(float(other.abs().max()), 1e-3 * largest)
        assert float((one - other).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("changes", [{}, {"latent_skip": False}], ids=str)
def test_outputs_and_gradients(changes: dict, options: PeerOptions, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    mine, theirs = (model.to(dtype) for model in make_pair(make_settings(**changes), options))
    x = torch.randn(2, 2, 3, 14, 3, dtype=dtype)  # batch, time, ensemble, points, variables
    assert_same(mine, theirs, x, tolerance)


def test_norms_of_queries_and_keys() -> None:
    block = {"num_heads": 2, "mlp_hidden_ratio": 2.0, "qk_norm": True}
    settings = make_settings(encoder=block, processor=block | {"num_layers": 2}, decoder=block)
    mine, theirs = (model.double() for model in make_pair(settings, PYG))
    assert_same(mine, theirs, torch.randn(1, 2, 1, 14, 3, dtype=torch.float64), 1e-9)


def make_processors(options: PeerOptions) -> tuple[OwnProcessor, PeerProcessor]:
    settings, graph = make_settings(), make_graph()
    mine = OwnProcessor(settings, graph, resolve_kernels(settings, preset=None, overrides=[])).double()
    theirs = PeerProcessor(settings, graph, options).double()
    take_weights(theirs, random_weights(mine))
    return mine, theirs


def test_the_processor_by_itself() -> None:
    mine, theirs = make_processors(PYG)
    assert_same(mine, theirs, torch.randn(10, 16, dtype=torch.float64), 1e-9, 2)


def test_blocks_that_are_compiled_are_counted() -> None:
    mine, theirs = make_processors(replace(PYG, compiler="eager"))
    assert theirs.compilation.entries[0].names == ("processor.proc.0", "processor.proc.1")
    assert_same(mine, theirs, torch.randn(5, 16, dtype=torch.float64), 1e-9, 1)
    assert theirs.compilation.graphs > 0


def test_a_weight_without_a_counterpart_is_an_error() -> None:
    mine, theirs = make_pair(make_settings(), PYG)
    weights = dict(mine.named_parameters())
    del weights["decoder.output.bias"]
    with pytest.raises(ValueError, match=r"without a counterpart: decoder\.node_data_extractor\.1\.bias$"):
        take_weights(theirs, weights)
    weights["decoder.output.bias"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"decoder\.node_data_extractor\.1\.bias has the shape \(3,\) there"):
        take_weights(theirs, weights)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the peer takes its Triton backend")
def test_it_is_not_measured_with_what_the_peer_falls_back_to() -> None:
    with pytest.raises(RuntimeError, match="takes its backend 'pyg', not 'triton': that needs a GPU and Triton"):
        PeerModel(make_settings(), make_graph(), make_fields(), PeerOptions())
