"""Graph attention on a GPU: every kernel of the slot beside that of anemoi-models 0.19, on the graphs of a model.

Run: python benchmarks/graph_attention.py [--graphs mesh,encoder,decoder] [--sweep] [--only-accuracy] [--grid o364]
     python benchmarks/graph_attention.py --quick                      (a minute on a CPU, small graphs)

The graphs are built here: hidden nodes of level 6, the reduced Gaussian grid N320. Each kernel is first compared with
the formula in float64 on the same inputs, output and six gradients, then all are timed in turns: forward alone,
without gradients, and forward and backward. The edge projection is part of every kernel. The peer takes part where
PYTHONPATH leads to it. Writes results/graph_attention.json after each graph.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch_geometric.data import HeteroData

import peer_attention
from etesian.data.grids import Grid, gaussian_latitudes, named_grid, reduced
from etesian.errors import EXIT_CODE, UserError, format_error
from etesian.graph.build import DATA_TO_HIDDEN, HIDDEN_TO_DATA, HIDDEN_TO_HIDDEN, add_edges
from etesian.graph.edges import Edges
from etesian.kernels.bench.candidates import Candidate, candidates
from etesian.kernels.bench.cases import Case, make_case
from etesian.kernels.bench.results import KernelResult, ShapeResult, write_results
from etesian.kernels.bench.shapes import Shape
from etesian.kernels.bench.show import best_estimate, ceilings_line
from etesian.kernels.bench.slot import Plan, bench_case
from etesian.kernels.bench.timing import Ceilings, measure_ceilings
from etesian.kernels.machine import BF16_TRUE, Machine
from etesian.kernels.resolve import resolve_kernels
from etesian.model.graphtransformer import GraphTransformerSettings
from etesian.runtime.device import DeviceClock, get_device
from etesian.schema.graph import GraphSettings
from etesian.training.environment import environment

FORMAT = 1
SLOT = "GraphAttention"
HERE = Path(__file__).parent
EDGE_FEATURES = 11
GRADIENTS = ("query", "key", "value", "edge_attr", "edge_weight", "edge_bias")
GRAPHS = {"mesh": HIDDEN_TO_HIDDEN, "encoder": DATA_TO_HIDDEN, "decoder": HIDDEN_TO_DATA}
"""Name to edges: mesh to mesh, data to mesh, mesh to data."""
DEGREES = (1, 3, 8, 16, 32, 64)
HEADS_AND_CHANNELS = ((16, 16), (16, 32), (16, 48), (6, 48), (8, 64), (16, 128), (8, 128), (4, 256))
ONLY_SMALL = "ReferenceGraphAttention"
"""It forms the projected edges several times over: checked on a small graph, and not timed."""
LEGEND = (
    "error: relative, against float64, of output and gradients; worst/peer's: the largest ratio of one to the peer's. "
    "ms: median of back-to-back calls; speed: the peer's time over the kernel's; device: fwd+bwd with all launches "
    "queued beforehand; x floor: over the time that its bytes take at the speed of a copy; GB: peak of fwd+bwd beside "
    "the inputs, gradients included."
)
PRECISIONS = (BF16_TRUE, "bf16-mixed", "16-mixed", "32-true")


@dataclass(frozen=True)
class Work:
    """Attention on one graph at one width, and with which kernels.

    Attributes
    ----------
    group, name : str
        ``graphs``, ``degree`` or ``channels``; and which of them.
    edges : Edges
        The graph.
    heads, head_channels : int
        H and C.
    small : bool
        Whether the reference takes part too, and nothing is timed.
    """

    group: str
    name: str
    edges: Edges
    heads: int
    head_channels: int
    small: bool = False


def main() -> int:
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    try:
        run(options, console)
    except UserError as error:
        print(format_error(error), file=sys.stderr)
        return EXIT_CODE
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="of mesh, encoder, decoder (default: all)")
    parser.add_argument("--kernels", help="only these beside the peer, as the tables name them: factored,triton")
    parser.add_argument("--grid", default="n320", help="data nodes of another grid, such as o364 (default: n320)")
    parser.add_argument("--sweep", action="store_true", help="degrees and channels too")
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--min-time", type=float, default=0.5, help="seconds a kernel (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default=BF16_TRUE, help="default: %(default)s")
    parser.add_argument(
        "--only-accuracy", action="store_true", help="compare with float64 only; writes what --output names"
    )
    parser.add_argument("--quick", action="store_true", help="small graphs on a CPU; writes only what --output names")
    parser.add_argument("--output", type=Path, help="default: results/graph_attention.json beside this file")
    options = parser.parse_args()
    options.graphs = options.graphs.split(",")
    options.kernels = options.kernels and options.kernels.split(",")
    if unknown := [name for name in options.graphs if name not in GRAPHS]:
        parser.error(f"--graphs: {', '.join(unknown)} is none of {', '.join(GRAPHS)}")
    if options.repeats < 1:
        parser.error("--repeats is a whole number from 1")
    if options.output is None and not (options.quick or options.only_accuracy):
        options.output = HERE / "results" / "graph_attention.json"
    return options


def run(options: argparse.Namespace, console: Console) -> None:
    """Measure all there is to measure; print and write after each graph."""
    try:
        device = get_device("cpu" if options.quick else "cuda:0")
    except UserError as error:
        raise UserError(error.args[0], mend="run it on a GPU, or --quick, which is a test of the benchmark") from error
    machine, clock = Machine(device, options.precision), DeviceClock(device)
    ceilings = measure_ceilings(clock, machine.products, products=False)
    repeats, seconds = (2, 1e-3) if options.quick else (options.repeats, options.min_time)
    plan = Plan(0 if options.only_accuracy else repeats, seconds, compiled=False, inference=True)
    content: dict[str, Any] = {
        "format": FORMAT,
        "environment": _environment(),
        "settings": {
            "quick": options.quick, "device": device.type, "device_name": clock.name, "precision": options.precision,
            "grid": "o16" if options.quick else options.grid, "edge_features": EDGE_FEATURES, "repeats": plan.repeats,
            "min_seconds": seconds,
        },
        "measured_on_the_device": asdict(ceilings),
        "works": [],
    }  # fmt: skip
    console.print(f"{clock.name}, {options.precision}; {ceilings_line(ceilings)}")
    console.print(LEGEND, style="dim")
    for work in works(options):
        named = contestants(work, peer_attention.PYG if options.quick else peer_attention.TRITON, options.kernels)
        result = bench(work, named, machine, clock, ceilings, plan)
        content["works"].append(to_json(work, result))
        show(work, content["works"][-1], result, console)
        if options.output is not None:
            write_results(options.output, content)
    if options.output is not None:
        console.print(f"\nresults: {options.output}")


def works(options: argparse.Namespace) -> Iterator[Work]:
    """Yield what is measured: a small graph with the reference, the graphs of a model, the sweeps."""
    heads, channels = (4, 8) if options.quick else (16, 64)
    small = build_graph("o16", 2, cutoff_factor=0.7)
    yield Work("small", "encoder", small[DATA_TO_HIDDEN], heads, channels, small=True)
    graph = small if options.quick else build_graph(options.grid, 6)
    for name in options.graphs:
        yield Work("graphs", name, graph[GRAPHS[name]], heads, channels)
    if not options.sweep:
        return
    mesh = graph[HIDDEN_TO_HIDDEN]
    for degree in DEGREES[:2] if options.quick else DEGREES:
        yield Work("degree", str(degree), even_edges(mesh.num_dst, degree), heads, channels)
    for some_heads, some_channels in HEADS_AND_CHANNELS[:1] if options.quick else HEADS_AND_CHANNELS:
        yield Work("channels", f"{some_heads} x {some_channels}", mesh, some_heads, some_channels)


def build_graph(grid_name: str, level: int, cutoff_factor: float = 0.6) -> dict[tuple[str, str, str], Edges]:
    """Return the three sets of edges between a grid and hidden nodes of a level."""
    grid = n320() if grid_name.lower() == "n320" else named_grid(grid_name)
    settings = GraphSettings.model_validate(
        {
            "nodes": {"hidden": {"resolution": level}},
            "edges": {"data2hidden": {"cutoff_factor": cutoff_factor}, "hidden2data": {"num_nearest_neighbours": 3}},
        }
    )
    graph = HeteroData()
    add_edges(graph, np.deg2rad(np.stack([grid.latitudes, grid.longitudes], axis=1)), settings)
    return {(src, to, dst): Edges.of_graph(graph, src, dst, tiled=True) for src, to, dst in graph.edge_types}


def n320() -> Grid:
    """Return the grid N320 from the rows in ``n320_rows.txt``, so that ecCodes need not be there."""
    lines = (HERE / "n320_rows.txt").read_text().splitlines()
    northern = [int(number) for line in lines if not line.startswith("#") for number in line.split()]
    return reduced("n320", gaussian_latitudes(320), [*northern, *reversed(northern)])


def even_edges(nodes: int, degree: int) -> Edges:
    """Return that many edges into each node, from nodes with numbers near its own, as in a mesh."""
    generator = torch.Generator().manual_seed(0)
    dst = torch.arange(nodes).repeat_interleave(degree)
    src = (dst + torch.randint(-200, 201, dst.shape, generator=generator)).clamp(0, nodes - 1)
    order = torch.argsort(dst * nodes + src)
    return Edges.from_sorted(torch.stack([src[order], dst[order]]), nodes, nodes).with_tiles()


def bench(
    work: Work, named: list[Candidate], machine: Machine, clock: DeviceClock, ceilings: Ceilings, plan: Plan
) -> ShapeResult:
    """Check, then time kernels on one graph."""
    settings = settings_of(work)
    shape = Shape("nodes", work.edges.num_dst, settings.processor, edges=work.edges, edge_features=EDGE_FEATURES)
    kernels = resolve_kernels(settings, preset=None, overrides=[]).model
    case: Case = make_case(SLOT, shape, settings, kernels, {}, machine)
    return bench_case(case, named, machine, clock, ceilings, replace(plan, repeats=0) if work.small else plan)


def settings_of(work: Work, target: str | None = None) -> GraphTransformerSettings:
    """Return the settings of a model of that width, with a kernel in the slot."""
    slots = {} if target is None else {SLOT: {"_target_": target}}
    block = {"num_heads": work.heads}
    return GraphTransformerSettings.model_validate(
        {"num_channels": work.heads * work.head_channels, "layer_kernels": slots,
         "encoder": block, "processor": block, "decoder": block}
    )  # fmt: skip


def contestants(work: Work, peer: str, names: Sequence[str] | None) -> list[Candidate]:
    """Return the peer's kernel, then those of the catalogue, or those that are named.

    Raises
    ------
    UserError
        For a name that no kernel has.
    """
    found: dict[str, Candidate] = {}
    for target in (peer, None):
        settings = settings_of(work, target)
        for candidate in candidates(SLOT, settings, resolve_kernels(settings, preset=None, overrides=[])):
            found.setdefault(candidate.key, replace(candidate, chosen_by=()))
    known = {short(candidate): candidate for candidate in found.values()}
    if unknown := [name for name in names or [] if name not in known]:
        raise UserError(f"there is no kernel {', '.join(unknown)}", where="--kernels", allowed=", ".join(known))
    return [
        candidate for name, candidate in known.items()
        if (names is None or name in names or candidate.target == peer)
        and (work.small or not candidate.target.endswith(ONLY_SMALL))
    ]  # fmt: skip


def short(kernel: KernelResult | Candidate) -> str:
    """Return a kernel's name for the tables: ``factored``, ``peer triton``."""
    name = kernel.target.rpartition(".")[2].removesuffix("GraphAttention")
    name = f"peer {name.removeprefix('Peer')}" if name.startswith("Peer") else name
    arguments = ", ".join(f"{key}={value}" for key, value in kernel.arguments.items())
    return f"{name.lower()} ({arguments})" if arguments else name.lower()


def to_json(work: Work, result: ShapeResult) -> dict[str, Any]:
    """Return the results on one graph in plain values, each kernel beside the peer."""
    edges, degree = work.edges, work.edges.dst_ptr.diff()
    peer = next((kernel for kernel in result.kernels if short(kernel).startswith("peer")), None)
    return {
        "group": work.group,
        "name": work.name,
        "num_src": edges.num_src,
        "num_dst": edges.num_dst,
        "num_edges": edges.num_edges,
        "degree": {"min": int(degree.min()), "mean": float(degree.double().mean()), "max": int(degree.max())},
        "heads": work.heads,
        "head_channels": work.head_channels,
        "inputs": result.inputs,
        "input_sets": result.input_sets,
        "floor_ms": {"forward": result.floor_ms[0], "forward_backward": result.floor_ms[1]},
        "kernels": [{"name": short(kernel), **_here(kernel.to_json()), "beside_peer": beside(kernel, peer)}
                    for kernel in result.kernels],
    }  # fmt: skip


def beside(kernel: KernelResult, peer: KernelResult | None) -> dict[str, Any] | None:
    """Return how much faster than the peer a kernel is, and its memory and errors over the peer's."""
    if peer is None or kernel is peer:
        return None
    found: dict[str, Any] = {"speed": None, "forward_speed": None, "memory": None, "errors": None, "worst_error": None}
    if kernel.both and peer.both and kernel.forward and peer.forward:
        found["speed"] = peer.both.call.median / kernel.both.call.median
        found["forward_speed"] = peer.forward.call.median / kernel.forward.call.median
    if kernel.peak_bytes and peer.peak_bytes:
        found["memory"] = kernel.peak_bytes / peer.peak_bytes
    own, theirs = errors_of(kernel), errors_of(peer)
    if own and theirs:
        found["errors"] = {name: error / theirs[name] for name, error in own.items() if theirs[name]}
        found["worst_error"] = max(found["errors"].values())
    return found


def errors_of(kernel: KernelResult) -> dict[str, float]:
    """Return the relative errors of output and gradients; empty where a kernel did not run."""
    if kernel.errors is None or kernel.errors.output is None:
        return {}
    return {"output": kernel.errors.output} | {name: kernel.errors.gradients[name] for name in GRADIENTS}


def show(work: Work, content: dict[str, Any], result: ShapeResult, console: Console) -> None:
    """Print the tables of one graph."""
    degree, floors = content["degree"], result.floor_ms
    console.print(
        f"\n[bold]{work.group}: {work.name}[/bold], {work.edges.num_src:,} to {work.edges.num_dst:,} nodes, "
        f"{work.edges.num_edges:,} edges, {degree['min']} to {degree['max']} into a node\n{work.heads} heads x "
        f"{work.head_channels} channels; floor {floors[0]:.3g} ms forward, {floors[1]:.3g} ms forward and backward"
    )
    named = {short(kernel): kernel for kernel in result.kernels}
    beside_peer = {entry["name"]: entry["beside_peer"] or {} for entry in content["kernels"]}
    accuracy = {name: errors for name, kernel in named.items() if (errors := errors_of(kernel))}
    if accuracy:
        heads = [name.removeprefix("edge_") for name in next(iter(accuracy.values()))]
        rows = [
            [name, *(f"{error:.1e}" for error in errors.values()), _number(beside_peer[name].get("worst_error"), 2)]
            for name, errors in accuracy.items()
        ]
        console.print(_table("error", [*heads, "worst/peer's"], rows))
    rows = [_times(name, kernel, beside_peer[name], floors[1]) for name, kernel in named.items() if kernel.both]
    if rows:
        heads = ["fwd ms", "speed", "fwd+bwd", "speed", "spread", "device", "x floor", "GB", "of peer's"]
        console.print(_table("time", heads, rows))
    for name, kernel in named.items():
        if kernel.reason:
            console.print(f"  {name}: {kernel.reason}", markup=False, style="red" if kernel.wrong else "dim")


def _times(name: str, kernel: KernelResult, beside_peer: dict[str, Any], floor: float) -> list[str]:
    assert kernel.forward is not None
    assert kernel.both is not None
    both = kernel.both
    return [
        name,
        _number(kernel.forward.call.median),
        _number(beside_peer.get("forward_speed"), 2),
        _number(both.call.median),
        _number(beside_peer.get("speed"), 2),
        f"{100 * both.call.relative:.0f}%",
        _number(both.device),
        _number(best_estimate(both) / floor, 1),
        "" if kernel.peak_bytes is None else f"{kernel.peak_bytes / 1e9:.2f}",
        _number(beside_peer.get("memory"), 2),
    ]


def _table(first: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, min_width=12)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _here(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry whose kernel lies beside this file with its path in the project."""
    file = Path(entry["library"] or "")
    return entry | {"library": str(file.relative_to(HERE.parent))} if file.is_relative_to(HERE) else entry


def _environment() -> dict[str, Any]:
    found = environment([sys.executable, *sys.argv])
    try:
        found["versions"][peer_attention.DISTRIBUTION] = importlib.metadata.version(peer_attention.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found["versions"][peer_attention.DISTRIBUTION] = None
    return found


if __name__ == "__main__":
    raise SystemExit(main())
