"""Models of kinds ``gnn`` and ``hierarchical`` compute what those of anemoi-models 0.19 compute, given their weights.

Run by ``test_peers.py``, in a process that has the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from anemoi.models.distributed import shapes
from anemoi.models.layers import mapper, processor
from einops import rearrange
from peer_checkpoints import make_config, make_model
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.names import layer_name
from etesian.graph.build import build_graph
from etesian.graph.levels import level_names, levels_of
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.model.features import NodeFeatures
from etesian.model.residual import Residual
from etesian.runtime.checkpointing import apply_activation_checkpointing
from etesian.schema.graph import GraphSettings
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
    theirs = PeerGraphNetwork(settings)
    extra = settings.encoder.mlp_extra_layers
    assert_same(settings, make_graph(), theirs, lambda name: their_name(name, extra), dtype, tolerance)


def assert_same(
    settings: ModelSettings, graph: HeteroData, theirs: nn.Module, rename: Callable[[str], str], dtype: torch.dtype,
    tolerance: float, *, members: int = 3,
) -> None:  # fmt: skip
    """Compare outputs, and gradients of the input and of every weight, relative to the largest of each."""
    torch.manual_seed(0)
    mine = build_model(settings, graph, make_fields(), resolve_kernels(settings, preset=None, overrides=[]))
    names, wanted = {name: rename(name) for name, _ in mine.named_parameters()}, dict(theirs.named_parameters())
    assert sorted(names.values()) == sorted(wanted)
    with torch.no_grad():
        for name, weight in mine.named_parameters():
            weight.normal_(std=0.3)
            wanted[names[name]].copy_(weight)
    apply_activation_checkpointing(mine, settings)
    mine, theirs = mine.to(dtype), theirs.to(dtype)
    x = torch.randn(2, 2, members, graph["data"].num_nodes, 3, dtype=dtype)  # batch, time, ensemble, points, variables
    expected = dict(results(theirs, x, {name: name for name in wanted}))
    got = dict(results(mine, x, names))
    assert got.keys() == expected.keys()
    largest = max(float(value.abs().max()) for name, value in expected.items() if name not in ("output", "input"))
    for name, one in got.items():
        other = expected[name]
        # A softmax takes no notice of the bias of keys: its gradient is what rounding leaves.
        scale = max(float(other.abs().max()), 1e-3 * largest)
        assert float((one - other).abs().max()) <= tolerance * scale, name


def hierarchical_settings(**processor: Any) -> ModelSettings:
    block = {"num_heads": 2, "mlp_hidden_ratio": 2.0}
    learnt = {"data2hidden": 3, "hidden2hidden": 3, "between_levels": 3, "hidden2data": 3}
    own = block | {"num_layers": 2, "learnt_of_nodes": 3, "coarsest_skip": True} | processor
    return make_settings(
        "hierarchical", encoder=block, processor=own, decoder=block, edge_trainable_parameters=learnt,
        node_trainable_parameters={"data": 2, "hidden": 3}, latent_skip=False,
    )  # fmt: skip


class PeerHierarchical(nn.Module):
    """The peer's whole hierarchical model, called as a model of this package is."""

    def __init__(self, settings: ModelSettings, graph: HeteroData) -> None:
        super().__init__()
        names, config = levels_of(graph), make_config()
        model, own = config["model"], settings.processor
        model["model"] = {
            "_target_": "anemoi.models.models.AnemoiModelEncProcDecHierarchical", "hidden_nodes_name": names,
            "latent_skip": own.coarsest_skip,
        }  # fmt: skip
        model["enable_hierarchical_level_processing"] = own.level_layers > 0
        model["level_process_num_layers"] = own.level_layers
        model["upscale_mapper"] = model["encoders"]["0"]["mapper"]
        model["downscale_mapper"] = model["decoders"]["0"]["mapper"]
        model["node_trainable_parameters"] = {"data": 2} | dict.fromkeys(names, 3)
        del model["bounding"]
        del model["processor"]["num_channels"]  # the model gives every level its own
        for name in ("upscale_mapper", "downscale_mapper"):
            model[name] = {key: value for key, value in model[name].items() if key != "num_channels"}
        self.inner = make_model(config, graph)[0].model

    def forward(self, x: Tensor) -> Tensor:
        return self.inner({"data": x})["data"][:, 0]

    def named_parameters(self, *args: Any, **keywords: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.inner.named_parameters(*args, **keywords)


def in_hierarchy(name: str) -> str:
    module, _, weight = name.rpartition(".")
    if module.endswith("_nodes"):
        return f"node_attributes.trainable_tensors.{module.removesuffix('_nodes')}.trainable"
    first, *rest = module.split(".")
    if first != "processor":
        if module.endswith(".edges"):
            return f"{first}_graph_provider.data.trainable.trainable"
        return f"{layer_name(module)}.{weight}".replace(f"{first}.", f"{first}.0.", 1)
    if rest[0] == "coarsest":
        if rest[1] == "edges":
            return "processor_graph_provider.trainable.trainable"
        return f"{layer_name('.'.join(['processor', *rest[1:]]))}.{weight}"
    part, number, *inside = rest
    if part == "nodes":
        return f"node_attributes.trainable_tensors.hidden_{int(number) + 2}.trainable"
    level = level_names(9)[int(number)]
    kind, theirs = {
        "down": ("processor", "down_level_processor"), "up": ("processor", "up_level_processor"),
        "to_coarser": ("encoder", "upscale"), "to_finer": ("decoder", "downscale"),
    }[part]  # fmt: skip
    if inside == ["edges"]:
        return f"{theirs}_graph_providers.{level}.trainable.trainable"
    return f"{layer_name('.'.join([kind, *inside]))}.{weight}".replace(f"{kind}.", f"{theirs}.{level}.", 1)


@pytest.mark.parametrize(("levels", "coarsening"), [(2, 2), (3, 1)])
@pytest.mark.parametrize("changes", [{}, {"level_layers": 0}, {"coarsest_skip": False, "level_layers": 2}], ids=str)
def test_levels(levels: int, coarsening: int, changes: dict[str, Any]) -> None:
    hidden = {"resolution": 3, "levels": levels, "coarsening": coarsening}
    points = np.random.default_rng(0).uniform(-80, 80, (2, 40))
    recipe = {"nodes": {"hidden": hidden}, "edges": {"data2hidden": {"cutoff_factor": 2.0}}}
    graph = build_graph(points[0], points[1], GraphSettings.model_validate(recipe))
    settings = hierarchical_settings(**changes)
    theirs = PeerHierarchical(settings, graph)  # it takes one member only
    assert_same(settings, graph, theirs, in_hierarchy, torch.float64, 1e-9, members=1)
