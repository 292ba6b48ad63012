"""Whole models whose graph attention reads edges in tiles, under Triton's interpreter, beside the default kernel.

Run by ``test_triton_graph_attention.py``. In float64 output and gradients agree to rounding.
"""

from __future__ import annotations

import io

import pytest
import torch
from compiled_models import AOT, BLOCK, MODEL, entry
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.runtime.prepare import prepare_model

TRITON = {"GraphAttention": {"_target_": "etesian.kernels.triton_kernels.attention.TritonGraphAttention"}}
BLOCK_SETTINGS = {"num_heads": 2, "mlp_hidden_ratio": 2.0}


def make(kind: str, kernels: dict, *, chunks: int = 1, **changes: object) -> nn.Module:
    """Build a model in float64 with the same weights each time; compile and checkpoint what the settings say."""
    mapper = BLOCK_SETTINGS | {"num_chunks": chunks, "gradient_checkpointing": chunks > 1}
    settings = make_settings(kind, encoder=mapper, decoder=mapper, layer_kernels=kernels, **changes)
    resolved = resolve_kernels(settings, preset=None, overrides=[])
    torch.manual_seed(0)
    model = build_model(settings, make_graph(), make_fields(), resolved).double()
    prepare_model(model, settings, resolved)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def run(model: nn.Module, batch: int, members: int) -> dict[str, Tensor]:
    x = torch.randn(batch, 2, members, 14, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = model(x)
    y.square().mean().backward()
    return {"output": y.detach()} | {name: p.grad for name, p in model.named_parameters()}


def assert_agree(model: nn.Module, plain: nn.Module, batch: int = 2, members: int = 1) -> None:
    got, want = run(model, batch, members), run(plain, batch, members)
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-10, atol=1e-11, msg=name)


@pytest.mark.parametrize(("batch", "members"), [(1, 1), (2, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("kind", ["graphtransformer", "transformer"])
def test_copies_of_the_graph(kind: str, batch: int, members: int) -> None:
    assert_agree(make(kind, TRITON), make(kind, {}), batch, members)


@pytest.mark.parametrize("chunks", [2, 5])
def test_chunks(chunks: int) -> None:
    model = make("graphtransformer", TRITON, chunks=chunks)
    assert_agree(model, make("graphtransformer", {}))
    assert_agree(make("graphtransformer", TRITON, chunks=chunks), make("graphtransformer", {}, chunks=chunks))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("module", [BLOCK, MODEL])
def test_compiled_whole(module: str, checkpointing: bool) -> None:
    processor = BLOCK_SETTINGS | {"num_layers": 2, "gradient_checkpointing": checkpointing and module == BLOCK}
    options = {"processor": processor, "compile": [entry(module, **AOT | {"fullgraph": True, "dynamic": False})]}
    assert_agree(make("graphtransformer", TRITON, **options), make("graphtransformer", {}))


def test_one_component_alone_reads_tiles() -> None:
    """The others have edges without tiles: their kernels don't ask for them."""
    settings = {"processor": BLOCK_SETTINGS | {"num_layers": 2, "layer_kernels": TRITON}}
    assert_agree(make("graphtransformer", {}, **settings), make("graphtransformer", {}))


def test_a_state_passes_from_kernel_to_kernel() -> None:
    """Tiles are of the graph: no file of weights holds any."""
    model, plain = make("graphtransformer", TRITON, chunks=2), make("graphtransformer", {})
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())


def test_a_stored_model_keeps_its_tiles() -> None:
    model = make("graphtransformer", TRITON, chunks=2)
    run(model, 2, 1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    again.zero_grad()
    assert_agree(again, make("graphtransformer", {}))
