"""Graph-attention backends on a CPU: forward, backward and what is kept between the two.

Run: python benchmarks/graph_attention_cpu.py [--threads 2] [--repeats 5]; writes results/graph_attention_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from etesian.graph.edges import Edges
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.pyg import PygGraphAttention
from etesian.kernels.reference import ReferenceGraphAttention

BACKENDS = {
    "reference": ReferenceGraphAttention,
    "pyg": PygGraphAttention,
    "factored": FactoredGraphAttention,
}
SHAPES = [(20_000, 160_000, 4, 16), (20_000, 160_000, 16, 64)]
EDGE_FEATURES = 11
NAMES = ("query", "key", "value", "edge_attr", "edge_weight", "edge_bias")


def make_case(nodes: int, num_edges: int, heads: int, channels: int) -> tuple[list[Tensor], Edges]:
    """Each node has equally many edges from nodes with numbers near its own, as in a mesh."""
    generator = torch.Generator().manual_seed(0)
    dst = torch.arange(nodes).repeat_interleave(num_edges // nodes)
    src = (dst + torch.randint(-200, 200, dst.shape, generator=generator)).clamp(0, nodes - 1)
    shapes = [(nodes, heads, channels)] * 3 + [
        (num_edges, EDGE_FEATURES),
        (heads * channels, EDGE_FEATURES),
        (heads * channels,),
    ]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return inputs, Edges.from_sorted(torch.stack([src, dst]), nodes, nodes)


def saved_megabytes(module: torch.nn.Module, inputs: list[Tensor], edges: Edges) -> float:
    """Return what one forward keeps for its backward pass beside its inputs."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(*inputs, edges)
    static = (edges.src, edges.dst, edges.dst_ptr, edges.src_perm, edges.src_ptr)
    for tensor in (*inputs, *static):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / 1e6


def measure(module: torch.nn.Module, inputs: list[Tensor], edges: Edges, repeats: int) -> dict[str, float]:
    cotangent = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    forward, backward = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        out = module(*inputs, edges)
        middle = time.perf_counter()
        torch.autograd.grad(out, inputs, cotangent)
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    total = [a + b for a, b in zip(forward[1:], backward[1:], strict=True)]
    milliseconds = {"forward_ms": min(forward[1:]), "backward_ms": min(backward[1:]), "total_ms": min(total)}
    return {name: round(1e3 * value, 2) for name, value in milliseconds.items()}


def errors(backend: type, nodes: int, num_edges: int, heads: int, channels: int) -> dict[str, float]:
    """Return the relative errors in float32 against the reference in float64, on a tenth of the graph."""
    inputs, edges = make_case(nodes // 10, num_edges // 10, heads, channels)
    cotangent = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    wide = [t.detach().double().requires_grad_() for t in inputs]
    out, exact = backend(heads, channels)(*inputs, edges), ReferenceGraphAttention(heads, channels)(*wide, edges)
    got = (out, *torch.autograd.grad(out, inputs, cotangent))
    expected = (exact, *torch.autograd.grad(exact, wide, cotangent.double()))
    return {
        name: float(f"{((a.double() - b).norm() / b.norm()).item():.2e}")
        for name, a, b in zip(("output", *NAMES), got, expected, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cases = []
    for nodes, num_edges, heads, channels in SHAPES:
        inputs, edges = make_case(nodes, num_edges, heads, channels)
        for name, backend in BACKENDS.items():
            module = backend(heads, channels)
            case = {"backend": name, "nodes": nodes, "edges": num_edges, "heads": heads, "head_channels": channels}
            case |= measure(module, inputs, edges, options.repeats)
            case["saved_megabytes"] = round(saved_megabytes(module, inputs, edges), 1)
            case["relative_error"] = errors(backend, nodes, num_edges, heads, channels)
            print(case, flush=True)
            cases.append(case)
    result = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processor": platform.machine(), "cpus": os.cpu_count(), "load_average": os.getloadavg()[0]},
        "torch": torch.__version__,
        "threads": options.threads,
        "repeats": options.repeats,
        "statistic": "minimum",
        "dtype": "float32",
        "edge_features": EDGE_FEATURES,
        "cases": cases,
    }
    path = Path(__file__).parent / "results" / "graph_attention_cpu.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
