"""Section ``graph``: the data nodes, the refined icosahedron, three sets of edges; or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etesian.migrate.theirs import Theirs, target

_NORMS = {"unit-std": "unit-std", "unit-max": "unit-max", None: "none"}
_BUILDERS = {
    "data2hidden": ("CutOffEdges", {"cutoff_factor": "cutoff_factor"}),
    "hidden2hidden": ("MultiScaleEdges", {"x_hops": "x_hops", "scale_resolutions": "scale_resolutions"}),
    "hidden2data": ("KNNEdges", {"num_nearest_neighbours": "num_nearest_neighbours"}),
}
_GRAPH_FILE = "system.input.graph"


def translate_graph(theirs: Theirs) -> None:
    """Translate the section ``graph``."""
    data = theirs.value("graph.data", theirs.dataset)
    hidden = theirs.value("graph.hidden", theirs.value("model.model.hidden_nodes_name", "hidden"))
    path = _file(theirs)
    overwrite = theirs.value("graph.overwrite", False)
    if not theirs.value("graph.nodes") or (path and not overwrite and Path(path).is_file()):
        _existing(theirs, path, data, hidden)
        return
    why = "a graph is kept in the user's cache, named by what it is made of, and made again when that changes"
    leave_out = theirs.drop if path else theirs.imply
    leave_out(_GRAPH_FILE, why)
    theirs.imply("graph.overwrite", why)
    theirs.set(_GRAPH_FILE, None)
    for end in (data, hidden):
        _nodes(theirs, end, is_data=end == data)
    for name in theirs.names("graph.nodes"):
        if name not in (data, hidden):
            theirs.refuse(f"graph.nodes.{name}", f"{data} and {hidden}")
    ends = {"data2hidden": (data, hidden), "hidden2hidden": (hidden, hidden), "hidden2data": (hidden, data)}
    norms: dict[str, set[str]] = {"edge_length": set(), "edge_dirs": set()}
    for place in theirs.names("graph.edges"):
        key = f"graph.edges.{place}"
        pair = tuple(theirs.value(f"{key}.{end}_name") for end in ("source", "target"))
        name = next((name for name, found in ends.items() if found == pair), "")
        if not name:
            theirs.refuse(key, f"edges between {data} and {hidden}, and within {hidden}")
            continue
        for end in ("source_name", "target_name"):
            theirs.imply(f"{key}.{end}", f"graph.edges.{name}")
        _edges(theirs, key, name)
        _attributes(theirs, f"{key}.attributes", norms)
    for attribute, found in norms.items():
        if len(found) > 1:
            theirs.refuse("graph.edges", f"one norm of {attribute} for all edges, not {', '.join(sorted(found))}")
        theirs.set(f"graph.edge_attributes.{attribute}", next(iter(found), "unit-std"))
    theirs.expect("graph.post_processors", (None, []), "nothing is done to the graph after it is built")
    for name in ("data", "hidden"):
        theirs.imply(f"graph.{name}", "the node sets are data and hidden")
    theirs.imply("graph.attributes", "read through nodes and edges")


def _file(theirs: Theirs) -> str | None:
    """Return the graph's file, of the parts that releases before 0.7 give."""
    if theirs.is_set(_GRAPH_FILE):
        given = theirs.value(_GRAPH_FILE)
        return None if given is None else str(given)
    path = None
    if theirs.is_set("hardware.files.graph") and theirs.is_set("hardware.paths.graph"):
        name = theirs.value("hardware.files.graph")
        path = None if name is None else str(Path(theirs.value("hardware.paths.graph")) / str(name))
    theirs.imply("hardware.files.graph", "see graph")
    return path


def _existing(theirs: Theirs, path: str | None, data: str, hidden: str) -> None:
    why = "the file is there and graph.overwrite is false: it is used as it is"
    theirs.ours["graph"] = {"nodes": None, "existing": {"data_nodes": data, "hidden_nodes": hidden}, "overwrite": False}
    theirs.set(_GRAPH_FILE, path)
    if path is None:
        theirs.value(_GRAPH_FILE)  # notes that it is missing
    theirs.carry_as(_GRAPH_FILE, _GRAPH_FILE, path)
    theirs.drop("graph", why if theirs.value("graph.nodes") else "a graph file is never replaced")


def _nodes(theirs: Theirs, name: str, *, is_data: bool) -> None:
    key = f"graph.nodes.{name}"
    kind = target(theirs.value(f"{key}.node_builder"))
    if is_data and kind not in ("AnemoiDatasetNodes", "ZarrDatasetNodes"):
        theirs.refuse(f"{key}.node_builder._target_", "AnemoiDatasetNodes")
    elif not is_data and kind != "TriNodes":
        theirs.refuse(f"{key}.node_builder._target_", "TriNodes", "a graph file: graph=existing in the config there")
    elif is_data:
        theirs.imply(f"{key}.node_builder", "the data nodes are the grid points of dataloader.training")
    else:
        theirs.imply(f"{key}.node_builder._target_", "the hidden nodes are those of a refined icosahedron")
        theirs.carry(f"{key}.node_builder.resolution", "graph.nodes.hidden.resolution")
    for attribute in theirs.names(f"{key}.attributes"):
        builder = f"{key}.attributes.{attribute}"
        if attribute == "area_weight" and is_data:
            theirs.expect(
                f"{builder}._target_",
                [f"anemoi.graphs.nodes.attributes.{name}" for name in ("SphericalAreaWeights", "AreaWeights")],
                "area weights on the sphere, scaled to a mean of one",
            )
            theirs.imply(builder, "scaled to a mean of one")
        else:
            theirs.drop(builder, "nothing reads this attribute")


def _edges(theirs: Theirs, key: str, name: str) -> None:
    builders = theirs.names(f"{key}.edge_builders")
    kind, arguments = _BUILDERS[name]
    if len(builders) != 1:
        theirs.refuse(f"{key}.edge_builders", f"one builder, {kind}")
        return
    builder = f"{key}.edge_builders.{builders[0]}"
    if target(theirs.value(builder)) != kind:
        theirs.refuse(f"{builder}._target_", kind, "a graph file: graph=existing in the config there")
        theirs.drop(builder, "refused")
        return
    theirs.imply(f"{builder}._target_", f"graph.edges.{name}")
    for argument, ours in arguments.items():
        value = theirs.value(f"{builder}.{argument}")
        if argument == "scale_resolutions" and isinstance(value, int):
            levels = list(range(1, value + 1))
            theirs.change(f"{builder}.{argument}", f"graph.edges.{name}.{ours}", levels, "the levels written out")
        else:
            theirs.carry(f"{builder}.{argument}", f"graph.edges.{name}.{ours}")
    for mask in ("source_mask_attr_name", "target_mask_attr_name"):
        theirs.expect(f"{builder}.{mask}", (None,), "all nodes")
    theirs.drop(f"{builder}.max_num_neighbours", "every node within the radius has an edge")


def _attributes(theirs: Theirs, key: str, norms: dict[str, set[str]]) -> None:
    for attribute in theirs.names(key):
        kind = {"edge_length": "EdgeLength", "edge_dirs": "EdgeDirection"}.get(attribute)
        if kind is None or target(theirs.value(f"{key}.{attribute}")) != kind:
            theirs.refuse(f"{key}.{attribute}", "edge_length: EdgeLength, edge_dirs: EdgeDirection")
            continue
        theirs.imply(f"{key}.{attribute}._target_", "the same attribute")
        norm: Any = theirs.value(f"{key}.{attribute}.norm")
        if norm not in list(_NORMS):
            theirs.refuse(f"{key}.{attribute}.norm", "unit-std, unit-max, null")
            continue
        norms[attribute].add(_NORMS[norm])
        theirs.carry_as(f"{key}.{attribute}.norm", f"graph.edge_attributes.{attribute}", _NORMS[norm])
