"""Time the graph of the N320 reduced Gaussian grid (542,080 points) with level-6 hidden nodes.

Run: python benchmarks/graph_build.py [--repeats 3] [--output benchmarks/results/graph_build.json]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import HeteroData

from etesian import __version__
from etesian.data.grids import named_grid
from etesian.graph.area import area_weights
from etesian.graph.build import add_edges, build_graph
from etesian.graph.nodes import to_xyz
from etesian.graph.store import load_graph, save_graph
from etesian.schema.graph import GraphSettings

SETTINGS = GraphSettings.model_validate(
    {
        "nodes": {"hidden": {"resolution": 6}},
        "edges": {"data2hidden": {"cutoff_factor": 0.6}, "hidden2data": {"num_nearest_neighbours": 3}},
    }
)


def seconds(work: Callable[[], object], repeats: int) -> dict[str, object]:
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(round(time.perf_counter() - start, 2))
        cpu.append(round(time.process_time() - start_cpu, 2))
    return {"best": min(wall), "all": wall, "cpu_all": cpu}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "graph_build.json")
    args = parser.parse_args()

    grid = named_grid("n320")
    latitudes, longitudes = grid.latitudes, grid.longitudes
    latlon = np.deg2rad(np.stack([latitudes, longitudes], axis=1))
    graph = build_graph(latitudes, longitudes, SETTINGS)
    file = args.output.with_suffix(".pt")
    times = {
        "edges and attributes": seconds(lambda: add_edges(HeteroData(), latlon, SETTINGS), args.repeats),
        "area weights": seconds(lambda: area_weights(to_xyz(latlon)), args.repeats),
        "whole graph": seconds(lambda: build_graph(latitudes, longitudes, SETTINGS), args.repeats),
        "save": seconds(lambda: save_graph(graph, file), args.repeats),
        "load": seconds(lambda: load_graph(file), args.repeats),
    }
    size = file.stat().st_size
    file.unlink()
    result = {
        "what": "seconds to build the graph: N320 reduced Gaussian grid, hidden nodes of level 6, multi-scale edges",
        "method": f"best of {args.repeats} repeats in one process, after one warm-up; other work may share the "
        "machine: see cpu_all and the load",
        "data_nodes": len(latitudes),
        "hidden_nodes": len(graph["hidden"].x),
        "edges": {f"{source}2{target}": graph[source, by, target].num_edges for source, by, target in graph.edge_types},
        "settings": SETTINGS.model_dump(),
        "seconds": times,
        "file_megabytes": round(size / 1e6, 1),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load_average_at_end": os.getloadavg(),
        "versions": {
            "etesian": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "torch", "torch-geometric", "eccodes")},
        },
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["seconds"], indent=2))


if __name__ == "__main__":
    main()
