"""Sections of a config cut to a size, for :mod:`etesian.testing`."""

from __future__ import annotations

from typing import Any

CUTOFF = 0.8
"""Radius of the encoder's edges at which no data node is left out, whatever the size."""


def cut_model(model: dict[str, Any], channels: int | None, heads: int | None, layers: int | None) -> None:
    """Cut the section ``model``; heads to the largest number that divides the channels."""
    width = model["num_channels"] = at_most(model["num_channels"], channels)
    for component in ("encoder", "processor", "decoder"):
        if "num_heads" in model[component]:
            most = at_most(model[component]["num_heads"], heads)
            model[component]["num_heads"] = max(n for n in range(1, most + 1) if width % n == 0)
    for key in ("num_layers", "level_layers"):
        if key in model["processor"]:
            model["processor"][key] = at_most(model["processor"][key], layers)


def cut_graph(graph: dict[str, Any], resolution: int | None) -> None:
    """Cut the section ``graph``; of several levels of hidden nodes two are left, the coarser one refined once."""
    hidden, edges = graph["nodes"]["hidden"], graph["edges"]
    if resolution is not None and hidden["levels"] > 1:
        resolution = max(resolution, 2)  # the edges of 12 nodes are all of one length, which has no spread
    if resolution is None or hidden["resolution"] <= resolution:
        return
    hidden |= {"resolution": resolution, "levels": min(hidden["levels"], 2), "coarsening": 1}
    edges["data2hidden"]["cutoff_factor"] = max(edges["data2hidden"]["cutoff_factor"], CUTOFF)
    scales = edges["hidden2hidden"]["scale_resolutions"]
    if scales is not None:
        edges["hidden2hidden"]["scale_resolutions"] = [n for n in scales if n <= resolution] or None
    neighbours, nodes = edges["hidden2data"]["num_nearest_neighbours"], 10 * 4**resolution + 2
    edges["hidden2data"]["num_nearest_neighbours"] = min(neighbours, nodes)


def at_most(value: int, limit: int | None) -> int:
    """Return a value, or the limit if there is one and it is smaller."""
    return value if limit is None else min(value, limit)
