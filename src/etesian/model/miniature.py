"""A stand-in of an experiment's model, small enough to be tried before any data are read.

It has the kind, the kernels and every module of the model, with one layer in the processor, few channels and a graph
of a few nodes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.graph.levels import edges_between, edges_within
from etesian.kernels.resolve import ComponentKernels
from etesian.model.build import build_model
from etesian.model.fields import ModelFields
from etesian.schema.model import ModelSettings

CHANNELS_OF_HEAD = 16
"""At most so many; some fused kernels take no fewer."""

_NODES = {"data": 12, "hidden": 5}
_COARSER = {"hidden_2": 4, "hidden_3": 3}
_NEIGHBOURS = 2
_CHUNKS = 2
_PROGNOSTIC, _FORCING = "prognostic", "forcing"


def miniature_settings(settings: ModelSettings) -> ModelSettings:
    """Return the settings of the stand-in."""
    heads = math.lcm(*(getattr(settings, name).num_heads for name in ("encoder", "processor", "decoder")))
    mappers = {
        name: mapper.model_copy(update={"num_chunks": min(mapper.num_chunks, _CHUNKS)})
        for name, mapper in (("encoder", settings.encoder), ("decoder", settings.decoder))
    }
    return settings.model_copy(
        update=mappers
        | {
            "num_channels": min(settings.num_channels, heads * CHANNELS_OF_HEAD),
            "processor": settings.processor.small(),
        }
    )


def build_miniature(settings: ModelSettings, kernels: ComponentKernels) -> nn.Module:
    """Build the stand-in of a model.

    Parameters
    ----------
    settings : ModelSettings
        Section ``model`` of the experiment, or what :func:`miniature_settings` made of it.
    kernels : ComponentKernels
        The experiment's own.
    """
    graph = _graph({} if not settings.processor.has_levels else _COARSER)
    return build_model(miniature_settings(settings), graph, _fields(settings), kernels)


def miniature_input(settings: ModelSettings, dtype: torch.dtype) -> Tensor:
    """Return an input of the stand-in, [B, T, E, G, V_in] with B = 2."""
    shape = (2, -settings.residual.step, 1, _NODES["data"], len(_fields(settings).input_names))
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def _fields(settings: ModelSettings) -> ModelFields:
    """Return a prognostic variable, a forcing, and every variable that a bound names, as a diagnostic one."""
    bounded: dict[str, Any] = {}
    for bound in settings.bounding:
        bounded |= dict.fromkeys(getattr(bound, "variables", ()))
        bounded |= dict.fromkeys(filter(None, [getattr(bound, "total_variable", None)]))
    outputs = (_PROGNOSTIC, *(name for name in bounded if name not in (_PROGNOSTIC, _FORCING)))
    ones = torch.ones(len(outputs))
    return ModelFields((_PROGNOSTIC, _FORCING), outputs, -settings.residual.step, ones, torch.zeros_like(ones))


def _graph(coarser: dict[str, int]) -> HeteroData:
    nodes, levels = _NODES | coarser, ["hidden", *coarser]
    graph = HeteroData()
    for name, count in nodes.items():
        position = torch.arange(count) / count
        graph[name].x = torch.stack([(position - 0.5) * 3, position * 6], dim=1)  # latitude and longitude, radians
    graph["data"].area_weight = torch.ones(_NODES["data"], 1)
    ends = [("data", "to", "hidden"), ("hidden", "to", "hidden"), ("hidden", "to", "data")]
    for src, _, dst in (*ends, *edges_within(levels), *edges_between(levels)):
        into = torch.arange(nodes[dst]).repeat_interleave(_NEIGHBOURS)
        out_of = (into * _NEIGHBOURS + torch.arange(len(into)) % _NEIGHBOURS) % nodes[src]
        store = graph[(src, "to", dst)]
        store.edge_index = torch.stack([out_of, into])
        store.edge_length = torch.ones(len(into), 1)
        store.edge_dirs = torch.ones(len(into), 2)
    return graph
