"""A small graph and what a model needs, made by hand."""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData

from etesian.graph.levels import edges_between, edges_within, level_names
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import ModelFields, build_model
from etesian.schema.model import ModelSettings
from etesian.schema.registry import kinds

WITHOUT_HEADS = ("gnn", "pointwise")
"""Kinds of components that take no heads."""

ALONG_EDGES = ("graphtransformer", "gnn", "hierarchical")
"""Kinds of models whose processor goes along the edges hidden to hidden."""


def sort_edges(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """Return the edges in the order of the contract: by destination, ties by source."""
    order = torch.argsort(src, stable=True)
    order = order[torch.argsort(dst[order], stable=True)]
    return torch.stack([src[order], dst[order]])


def make_graph(num_data: int = 14, num_hidden: int = 5, seed: int = 0, levels: int = 1) -> HeteroData:
    generator = torch.Generator().manual_seed(seed)
    graph = HeteroData()
    names = level_names(levels)
    sizes = {"data": num_data} | {name: num_hidden - number for number, name in enumerate(names)}
    for name, count in sizes.items():
        latitudes = (torch.rand(count, 1, generator=generator) - 0.5) * torch.pi
        longitudes = torch.rand(count, 1, generator=generator) * 2 * torch.pi
        graph[name].x = torch.cat([latitudes, longitudes], dim=1)
    graph["data"].area_weight = torch.ones(num_data, 1)
    ends = [("data", "hidden", 6), ("hidden", "hidden", 3), ("hidden", "data", 2)]
    coarser = [(src, dst, 2) for src, _, dst in (*edges_within(names), *edges_between(names))]
    for src, dst, degree in (*ends, *coarser):
        picked = [torch.randperm(sizes[src], generator=generator)[:degree] for _ in range(sizes[dst])]
        index = sort_edges(torch.cat(picked), torch.arange(sizes[dst]).repeat_interleave(degree))
        store = graph[(src, "to", dst)]
        store.edge_index = index
        store.edge_length = torch.rand(index.shape[1], 1, generator=generator)
        store.edge_dirs = torch.randn(index.shape[1], 2, generator=generator)
    return graph


def make_fields(num_steps: int = 2) -> ModelFields:
    """Three inputs (one a forcing), three outputs (one diagnostic)."""
    return ModelFields(
        input_names=("t", "insolation", "q"),
        output_names=("t", "q", "tp"),
        num_steps=num_steps,
        output_scale=torch.tensor([0.1, 100.0, 50.0]),
        output_offset=torch.tensor([-28.0, -0.5, -1.0]),
    )


def make_settings(kind: str = "graphtransformer", **changes: object) -> ModelSettings:
    """Return the settings of a small model; the window of kind transformer leaves some of five nodes out."""
    section = kinds("model")[kind]
    blocks = {
        name: {"mlp_hidden_ratio": 2.0} | ({} if own in WITHOUT_HEADS else {"num_heads": 2})
        for name, own in section.component_kinds.items()
    }
    learnt = {"data2hidden": 2, "hidden2data": 0} | ({"hidden2hidden": 1} if kind in ALONG_EDGES else {})
    window = {"window_size": 1} if kind == "transformer" else {}
    base = {
        "num_channels": 16,
        "encoder": blocks["encoder"],
        "processor": blocks["processor"] | {"num_layers": 2} | window,
        "decoder": blocks["decoder"],
        "node_trainable_parameters": {"data": 2, "hidden": 3},
        "edge_trainable_parameters": learnt,
    }
    settings = section.model_validate(base | changes)
    assert isinstance(settings, ModelSettings)
    return settings


def make_model(
    settings: ModelSettings | None = None, graph: HeteroData | None = None, seed: int = 0
) -> torch.nn.Module:
    settings = settings or make_settings()
    torch.manual_seed(seed)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    return build_model(settings, graph_for(settings) if graph is None else graph, make_fields(), kernels)


def graph_for(settings: ModelSettings) -> HeteroData:
    """Return the small graph, of three levels where the kind works on several."""
    return make_graph(levels=3 if settings.processor.has_levels else 1)
