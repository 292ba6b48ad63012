"""``graph``: build the graph of an experiment, or describe one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etesian.commands import common
from etesian.errors import UserError
from etesian.graph.files import check_graph_file
from etesian.outputs import check_writable

if TYPE_CHECKING:
    from rich.table import Table
    from torch_geometric.data import HeteroData

DESCRIPTION = "Build or describe the graph of nodes and edges that a model works on."
EPILOG = """examples:
  anemoi-training graph build -o graph.pt graph.nodes.hidden.resolution=4
  anemoi-training graph describe
  anemoi-training graph describe graph.pt
"""

SHOWN_NODES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="<action>", title="actions", required=True)
    build = actions.add_parser(
        "build",
        help="build the graph of an experiment and keep it",
        description="Build the graph of an experiment, or find it unchanged, and print where it is.",
        epilog=f"example:\n  anemoi-training graph build -o graph.pt\n\n{common.HYDRA_EPILOG}",
    )
    build.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the file, *.pt (default: system.input.graph, or the cache)"
    )
    common.add_hydra_arguments(build)
    describe = actions.add_parser(
        "describe",
        help="print the nodes, edges, degrees, lengths and weights of a graph",
        description="Describe a graph: the file FILE.pt when given, else that of the experiment.",
        epilog=f"example:\n  anemoi-training graph describe graph.pt\n\n{common.HYDRA_EPILOG}",
    )
    common.add_hydra_arguments(describe)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    from rich.console import Console

    console = Console()
    if args.action == "build":
        if args.output is not None:
            check_writable(args.output, "--output")
        graph, where = _experiment_graph(args, args.output)
        console.print(f"graph {graph.fingerprint}: {where}", soft_wrap=True)
        return 0
    file = _file_argument(args)
    from etesian.graph.store import describe, load_graph

    graph, where = _experiment_graph(args, None) if file is None else (load_graph(file), file)
    summary = describe(graph)
    console.print(f"graph {summary['fingerprint'] or 'without fingerprint'}: {where}", soft_wrap=True)
    console.print(nodes_table(summary))
    console.print(edges_table(summary))
    return 0


def nodes_table(summary: dict[str, Any]) -> Table:
    """Lay out the nodes of :func:`etesian.graph.store.describe`."""
    from rich.table import Table

    table = Table("nodes", "number", "area weight min / mean / max", title="nodes")
    for kind, nodes in summary["nodes"].items():
        weight = summary["area_weight"].get(kind)
        table.add_row(kind, f"{nodes['count']:,}", _spread(weight, "{:.4g}") if weight else "none")
    return table


def edges_table(summary: dict[str, Any]) -> Table:
    """Lay out the edges of :func:`etesian.graph.store.describe`, a column for each set."""
    from rich.table import Table

    sets = summary["edges"]
    table = Table("min / mean / max", *sets, title="edges")
    table.add_row("number of edges", *(f"{edges['count']:,}" for edges in sets.values()))
    table.add_row("edges out of a source", *(_spread(edges["source_degree"], "{:.4g}") for edges in sets.values()))
    table.add_row("edges into a target", *(_spread(edges["target_degree"], "{:.4g}") for edges in sets.values()))
    table.add_row("length, km", *(_spread(edges["length_km"], "{:.0f}") for edges in sets.values()))
    table.add_row("sources without edge", *(_numbers(edges["sources_without_edge"]) for edges in sets.values()))
    table.add_row("targets without edge", *(_numbers(edges["targets_without_edge"]) for edges in sets.values()))
    return table


def _file_argument(args: argparse.Namespace) -> Path | None:
    """Return the file that ``describe`` was given, if it was given one.

    Raises
    ------
    UserError
        If there is more beside the file: a file has no config.
    """
    files = [word for word in args.overrides if word.endswith(".pt") and "=" not in word]
    if not files:
        return None
    if len(args.overrides) > 1 or args.config_dir is not None or args.config_name != "train" or args.cfg:
        raise UserError(
            f"{files[0]} is described as it is, without a config",
            where="graph describe",
            allowed="one file, or a config with overrides",
            mend=f"graph describe {files[0]}",
        )
    check_graph_file(Path(files[0]))
    return Path(files[0])


def _experiment_graph(args: argparse.Namespace, output: Path | None) -> tuple[HeteroData, Path]:
    """Return the graph of the experiment and the file it is kept in."""
    config, _ = common.load_config(args)
    if config.graph.existing is not None and args.action == "build":
        raise UserError(
            "graph build builds nothing with graph=existing", where="graph.existing", allowed="null",
            mend="graph=multi_scale, or graph describe",
        )  # fmt: skip
    from etesian.data.open import open_split
    from etesian.graph.build import check_settings
    from etesian.graph.store import graph_path, load_or_build

    if config.graph.existing is None:
        check_settings(config.graph)
    cache = common.cache_dir()
    dataset = open_split("training", config.dataloader.training, cache)
    named = config.system.input.graph
    path = output or (Path(named).expanduser() if named else None)
    graph = load_or_build(dataset.latitudes, dataset.longitudes, config.graph, path, cache)
    return graph, path or graph_path(cache, graph.fingerprint)


def _spread(values: dict[str, float], form: str) -> str:
    return " / ".join(form.format(values[name]) for name in ("min", "mean", "max"))


def _numbers(nodes: list[int]) -> str:
    if not nodes:
        return "none"
    shown = ", ".join(str(node) for node in nodes[:SHOWN_NODES])
    return f"{len(nodes):,}: {shown}{', ...' if len(nodes) > SHOWN_NODES else ''}"
