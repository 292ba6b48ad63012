"""Count what processes that share a model have of its graph, and how many nodes each fetches from the others.

Run: python benchmarks/sharding_nodes.py [--output benchmarks/results/sharding_nodes.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torch_geometric.data import HeteroData

from etesian import __version__
from etesian.data.grids import named_grid
from etesian.graph.build import build_graph
from etesian.graph.partition import Partition
from etesian.schema.graph import GraphSettings

GRAPHS = {"o96": 5, "n320": 6}
"""Grid and level of the hidden nodes."""

PROCESSES = (2, 4, 8)
EDGES = {"encoder": ("data", "hidden"), "processor": ("hidden", "hidden"), "decoder": ("hidden", "data")}


def graph_of(grid_name: str, level: int) -> HeteroData:
    settings = GraphSettings.model_validate(
        {
            "nodes": {"hidden": {"resolution": level}},
            "edges": {"data2hidden": {"cutoff_factor": 0.6}, "hidden2data": {"num_nearest_neighbours": 3}},
        }
    )
    grid = named_grid(grid_name)
    return build_graph(grid.latitudes, grid.longitudes, settings)


def counted(graph: HeteroData, processes: int) -> dict[str, Any]:
    """Return the most of each that a process has or fetches."""
    partition = Partition.of_graph(graph, processes)
    found: dict[str, Any] = {
        f"{kind}_nodes": max(part.numel() for part in partition.of(kind).parts) for kind in ("data", "hidden")
    }
    for component, (src, dst) in EDGES.items():
        parts = [partition.edges(graph, src, dst, part, tiled=False) for part in range(processes)]
        fetched = [sum(part.received) - part.received[number] for number, part in enumerate(parts)]
        found[component] = {"edges": max(part.edge.numel() for part in parts), "fetched": max(fetched)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "sharding_nodes.json")
    args = parser.parse_args()
    graphs = {}
    for grid, level in GRAPHS.items():
        graph = graph_of(grid, level)
        graphs[grid] = {
            "level": level,
            "data_nodes": graph["data"].num_nodes,
            "hidden_nodes": graph["hidden"].num_nodes,
            "processes": {str(count): counted(graph, count) for count in PROCESSES},
        }
        print(grid, json.dumps(graphs[grid]), flush=True)
    result = {
        "what": "the most nodes and edges that a process has, and the most nodes that it fetches from others",
        "graphs": graphs,
        "etesian": __version__,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
