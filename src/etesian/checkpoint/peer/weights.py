"""The weights of a peer's checkpoint under the names of this package, each with its place on either side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.names import layer_name
from etesian.errors import Problem, UserError

_LEARNT_EDGES = {
    "encoder.edges": ("encoder_graph_provider.{dataset}", "{dataset}", "{hidden}"),
    "processor.edges": ("processor_graph_provider", "{hidden}", "{hidden}"),
    "decoder.edges": ("decoder_graph_provider.{dataset}", "{hidden}", "{dataset}"),
}
_LAYOUT = "trainable_layout_version"


def convert_weights(
    model: nn.Module,
    kind: str,
    state: Mapping[str, Tensor],
    graph: HeteroData,
    names: Mapping[str, str],
    where: str,
) -> dict[str, Tensor]:
    """Return the weights of a model of this package.

    Parameters
    ----------
    model : nn.Module
        A model of the same settings: its names and shapes.
    kind : str
        Its kind.
    state : mapping
        Parameters and buffers of the peer's model, without the beginning ``model.``.
    graph : HeteroData
        The peer's graph, with its edges in the peer's order.
    names : mapping
        Node sets in it: ``dataset`` and ``hidden``; and the keys of its one ``encoder`` and ``decoder``.
    where : str
        The file, for messages.

    Raises
    ------
    UserError
        Naming weights that have no counterpart on the other side, or another shape there.
    """
    left = {name: value for name, value in state.items() if not _is_no_weight(name)}
    for name in [name for name in left if ".layer_norm_attention_dest." in name]:  # one norm of two names
        if torch.equal(left[name], left.get(name.replace("_attention_dest.", "_attention."), torch.empty(0))):
            del left[name]
    weights, faults = {}, []
    for own, wanted in model.named_parameters():
        sources = _their_names(own, kind, names, left)
        if missing := [source for source in sources if source not in left]:
            faults.append(f"{own} would be {', '.join(missing)}, which is not there")
            continue
        value = torch.cat([left.pop(source) for source in sources])
        module = own.rpartition(".")[0]
        if module in _LEARNT_EDGES:
            value = _in_own_order(module, value, state, graph, names, where)
        if value.shape != wanted.shape:
            faults.append(f"{own} is {tuple(value.shape)} there and {tuple(wanted.shape)} here")
        weights[own] = value.detach().clone()
    faults += [f"{name} has no counterpart here" for name in left]
    if faults:
        shown = [Problem(fault, where) for fault in faults[:8]]
        if len(faults) > 8:
            shown.append(Problem(f"and {len(faults) - 8} more weights", where))
        raise UserError.collect(shown)
    return weights


def _is_no_weight(name: str) -> bool:
    """Tell whether an entry of the state is a buffer that the graph, the statistics or the layout give."""
    return name.startswith(("node_attributes.latlons_", "boundings.")) or name.endswith(_LAYOUT)


def _their_names(own: str, kind: str, names: Mapping[str, str], state: Mapping[str, Tensor]) -> list[str]:
    """Return what a weight is made of there: one name, or gate and value of a gated MLP."""
    module, weight = own.rsplit(".", maxsplit=1)
    if module in ("data_nodes", "hidden_nodes"):
        nodes = names["dataset" if module == "data_nodes" else "hidden"]
        return [f"node_attributes.trainable_tensors.{nodes}.{weight}"]
    if module in _LEARNT_EDGES:
        return [f"{_LEARNT_EDGES[module][0].format(**names)}.trainable.{weight}"]
    name = layer_name(module, kind)
    assert name is not None, own
    component, _, rest = name.partition(".")
    name = name if component == "processor" else f"{component}.{names[component]}.{rest}"
    if f"{name}.gate_proj.{weight}" in state:  # gate first, as etesian.kernels.glu has it
        return [f"{name}.gate_proj.{weight}", f"{name}.value_proj.{weight}"]
    if module.endswith("mlp.linear_out") and f"{name}.{weight}" not in state:  # a gated MLP has one module fewer
        name = name.removesuffix(".2") + ".1"
    return [f"{name}.{weight}"]


def _in_own_order(
    module: str, value: Tensor, state: Mapping[str, Tensor], graph: HeteroData, names: Mapping[str, str], where: str
) -> Tensor:
    """Return learnt features of edges, which the peer keeps sorted by destination, in the order by source as well."""
    provider, source, target = (part.format(**names) for part in _LEARNT_EDGES[module])
    layout = state.get(f"{provider}.{_LAYOUT}")
    if layout is None or int(layout) != 1:
        raise UserError(
            f"the learnt features of {provider} are in an order of before anemoi-models 0.19",
            where=where,
            allowed=f"{_LAYOUT} 1",
            mend="anemoi-models migration brings a checkpoint up to date",
        )
    index = graph[source, "to", target].edge_index.cpu().numpy()
    theirs = np.argsort(index[1], kind="stable")
    own = np.lexsort((index[0], index[1]))
    place = np.empty_like(theirs)
    place[theirs] = np.arange(len(theirs))
    return value[torch.from_numpy(place[own])]
