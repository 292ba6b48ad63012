"""A model of kind ``gnn`` computes what the graph networks of anemoi-models 0.19 compute, given their weights.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from anemoi.models.distributed import shapes
from anemoi.models.layers import mapper, processor
from einops import rearrange
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.model.features import NodeFeatures
from etesian.model.residual import Residual
from etesian.runtime.checkpointing import apply_activation_checkpointing
from etesian.schema.model import ModelSettings
from peer_model import NAMES, PeerModel, _edges

BLOCK = {"messages.mlp": "conv.edge_mlp", "update.mlp": "node_mlp"}
EMBEDDINGS = {
    "encoder.embed_source.mlp": "encoder.emb_nodes_src",
    "encoder.embed_destination.mlp": "encoder.emb_nodes_dst",
    "encoder.embed_edges.mlp": "encoder.emb_edges",
    "processor.embed_edges.mlp": "processor.proc.0.emb_edges",
    "decoder.embed_edges.mlp": "decoder.emb_edges",
}


class PeerGraphNetwork(PeerModel):
    """Encoder, processor and decoder of the peer's graph network, called as a model of this package is."""

    def __init__(self, settings: ModelSettings, *, checkpointing: bool = False) -> None:
        nn.Module.__init__(self)
        graph, fields = make_graph(), make_fields()
        learnt, channels = settings.node_trainable_parameters, settings.num_channels
        self.latent_skip = settings.latent_skip
        self.data_nodes = NodeFeatures(graph["data"].x, learnt.data)
        self.hidden_nodes = NodeFeatures(graph["hidden"].x, learnt.hidden)
        data_dim = fields.num_steps * len(fields.input_names) + self.data_nodes.dim
        edges = settings.edge_trainable_parameters
        self.encoder_edges = _edges(graph, "data", "hidden", edges.data2hidden)
        self.processor_edges = _edges(graph, "hidden", "hidden", edges.hidden2hidden)
        self.decoder_edges = _edges(graph, "hidden", "data", edges.hidden2data)

        def shared(part: Any, own_edges: Any) -> dict[str, Any]:
            return {
                "num_channels": channels, "num_chunks": 1, "edge_dim": own_edges.edge_dim, "layer_kernels": {},
                "mlp_extra_layers": part.mlp_extra_layers, "mlp_hidden_ratio": part.mlp_hidden_ratio,
                "gradient_checkpointing": checkpointing,
            }  # fmt: skip

        self.encoder = mapper.GNNForwardMapper(
            in_channels_src=data_dim, in_channels_dst=self.hidden_nodes.dim,
            **shared(settings.encoder, self.encoder_edges),
        )  # fmt: skip
        self.processor = processor.GNNProcessor(
            num_layers=settings.processor.num_layers, **shared(settings.processor, self.processor_edges)
        )
        self.decoder = mapper.GNNBackwardMapper(
            in_channels_src=channels, in_channels_dst=channels, out_channels_dst=len(fields.output_names),
            **shared(settings.decoder, self.decoder_edges),
        )  # fmt: skip
        self.residual = Residual(settings.residual, fields)
        self._unsharded = shapes.BipartiteGraphShardInfo(src_nodes=None, dst_nodes=None, edges=None)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, ensemble, _, _ = x.shape
        copies = batch * ensemble
        x_data = self.data_nodes.join(rearrange(x, "b t e g v -> (b e g) (t v)"), copies)
        x_data, encoded = self._map(self.encoder, self.encoder_edges, (x_data, self.hidden_nodes(copies)), copies)
        edge_attr, edge_index, _ = self.processor_edges.get_edges(batch_size=copies, act_checkpoint=False)
        whole = shapes.GraphShardInfo(nodes=[len(encoded)], edges=None)
        processed = self.processor(encoded, copies, whole, edge_attr, edge_index)
        if self.latent_skip:
            processed = processed + encoded
        y = self._map(self.decoder, self.decoder_edges, (processed, x_data), copies)
        return self.residual(rearrange(y, "(b e g) v -> b e g v", b=batch, e=ensemble), x)


def in_mlp(layer: str, extra: int) -> str:
    """Return the peer's name of a layer of an MLP with a norm."""
    last = 2 * (1 + extra)
    return {"mlp.linear_in": f"mlp.{last}", "mlp.linear_out": f"mlp.{last + 2}", "norm": "layer_norm"}.get(
        layer, f"mlp.{layer.rpartition('.')[2]}"
    )


def their_name(name: str, extra: int) -> str:
    module, _, weight = name.rpartition(".")
    if module in NAMES:
        return f"{NAMES[module]}.{weight}"
    if module.startswith("decoder.head."):
        layer = module.removeprefix("decoder.head.")
        place = 2 * (2 + extra) if layer == "output" else layer.rpartition(".")[2]
        return f"decoder.node_data_extractor.mlp.{place}.{weight}"
    for own, theirs in EMBEDDINGS.items():
        if module.startswith(f"{own}."):
            return f"{theirs}.{in_mlp(module.removeprefix(f'{own}.'), extra)}.{weight}"
    place = module.replace("processor.blocks.", "processor.proc.").replace(".block.", ".proc.")
    for own, theirs in BLOCK.items():
        before, found, layer = place.partition(f".{own}.")
        if found:
            return f"{before}.{theirs}.{in_mlp(layer, extra)}.{weight}"
    raise AssertionError(name)


def results(model: nn.Module, x: Tensor, names: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the output, and the gradients of the input and of every weight."""
    leaf = x.clone().requires_grad_()
    out = model(leaf)
    yield "output", out.detach()
    generator = torch.Generator().manual_seed(1)
    weights = dict(model.named_parameters())
    seed = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    gradients = torch.autograd.grad(out, [leaf, *weights.values()], seed)
    yield from zip(["input", *(names[name] for name in weights)], gradients, strict=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize(
    "changes",
    [{}, {"latent_skip": False}, {"mlp_extra_layers": 1, "mlp_hidden_ratio": 2.5}, {"gradient_checkpointing": "full"},
     {"gradient_checkpointing": "full", "num_chunks": 3}],
    ids=str,
)  # fmt: skip
def test_outputs_and_gradients(changes: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    block = {key: value for key, value in changes.items() if key != "latent_skip"}
    inside = {key: value for key, value in block.items() if key != "num_chunks"} | {"num_layers": 2}
    whole = {"latent_skip": changes.get("latent_skip", True)}
    learnt = {"data2hidden": 2, "hidden2hidden": 1, "hidden2data": 3}
    settings = make_settings(
        "gnn", encoder=block, processor=inside, decoder=block, edge_trainable_parameters=learnt, **whole
    )
    torch.manual_seed(0)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    mine = build_model(settings, make_graph(), make_fields(), kernels)
    theirs = PeerGraphNetwork(settings)
    with torch.no_grad():
        for weight in mine.parameters():
            weight.normal_(std=0.3)
        names = {name: their_name(name, settings.encoder.mlp_extra_layers) for name, _ in mine.named_parameters()}
        wanted = dict(theirs.named_parameters())
        assert sorted(names.values()) == sorted(wanted)
        for name, weight in mine.named_parameters():
            wanted[names[name]].copy_(weight)
    apply_activation_checkpointing(mine, settings)
    mine, theirs = mine.to(dtype), theirs.to(dtype)
    x = torch.randn(2, 2, 3, 14, 3, dtype=dtype)  # batch, time, ensemble, points, variables
    expected = dict(results(theirs, x, {name: name for name in wanted}))
    got = dict(results(mine, x, names))
    assert got.keys() == expected.keys()
    largest = max(float(value.abs().max()) for name, value in expected.items() if name not in ("output", "input"))
    for name, one in got.items():
        other = expected[name]
        scale = max(float(other.abs().max()), 1e-3 * largest)
        assert float((one - other).abs().max()) <= tolerance * scale, name
