"""Small models that several processes share, in processes of their own: what each of them computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_model import make_fields, make_graph, make_settings
from torch import Tensor, nn

from etesian.graph.partition import Partition
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.resolve import resolve_kernels
from etesian.model.build import build_model
from etesian.model.exchange import all_to_all, gather
from etesian.model.part import leave_part
from etesian.runtime.prepare import prepare_model

PROCESSES = 3
MAPPER = {"num_heads": 2, "mlp_hidden_ratio": 2.0}
WIDE = {"processor": MAPPER | {"num_layers": 2, "window_size": None}}
GRAPH_ORDER = {"processor": MAPPER | {"num_layers": 2, "window_size": 1, "node_order": "graph"}}
PARTED = MAPPER | {"num_chunks": 2, "gradient_checkpointing": "full"}
MESSAGES = {"num_chunks": 2, "gradient_checkpointing": "full"}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "two": ("graphtransformer", 2, {}),
    "three": ("graphtransformer", 3, {}),
    "chunks": ("graphtransformer", 2, {"encoder": PARTED, "decoder": PARTED}),
    "latent skip": ("graphtransformer", 2, {"latent_skip": True}),
    **{
        f"{policy}": ("graphtransformer", 2, {"processor": MAPPER | {"num_layers": 2, "gradient_checkpointing": policy,
                                                                     "qk_norm": True, "fuse_projections": True}})
        for policy in ("full", "selective")
    },
    "tiles": ("graphtransformer", 2, {"layer_kernels": {"GraphAttention": {"_target_": "shared_models.Tiled"}}}),
    "window": ("transformer", 2, {}),
    "all see all": ("transformer", 2, WIDE),
    "window of the graph": ("transformer", 2, GRAPH_ORDER),
    "window, full": ("transformer", 2, {"processor": MAPPER | {"num_layers": 2, "gradient_checkpointing": "full"}}),
    "messages": ("gnn", 3, {}),
    "messages, chunks": ("gnn", 2, {"encoder": MESSAGES, "decoder": MESSAGES}),
    "messages at one end": ("graphtransformer", 2, {"encoder": {"kind": "gnn"}}),
    "pointwise": ("pointwise", 2, {}),
}  # fmt: skip
"""Kind, processes and settings of each."""


class Tiled(FactoredGraphAttention):
    """Graph attention that wants its edges in tiles, and finds those of its part."""

    reads_tiles = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
        tiles = others[-1].tiles
        assert tiles is not None
        assert int(tiles.dst_nodes.max()) < len(query)
        assert int(tiles.src_nodes.max()) < len(key)
        return super().forward(query, key, value, *others)


def whole_model(case: str) -> nn.Module:
    """Build a model in float64 with the same weights each time."""
    kind, _, changes = CASES[case]
    settings = make_settings(kind, **changes)
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    model = build_model(settings, make_graph(), make_fields(), kernels).double()
    prepare_model(model, settings, kernels)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def inputs() -> Tensor:
    """Return two samples of two members, [B, T, E, G, V_in]."""
    return torch.randn(2, 2, 2, 14, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def computed(model: nn.Module, points: slice = slice(None)) -> dict[str, Tensor]:
    """Return the output, and the gradients of the sum of its squares."""
    y = model(inputs()[:, :, :, points])
    y.square().sum().backward()
    return {"output": y.detach()} | {name: p.grad for name, p in model.named_parameters()}


def shared(case: str, rank: int, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Return what one process computes: the gathered output, and its part of the gradients."""
    graph, count = make_graph(), CASES[case][1]
    partition, model = Partition.of_graph(graph, count), whole_model(case)
    names = list(model.state_dict())
    leave_part(model, graph, partition, rank, group)
    assert list(model.state_dict()) == names
    found = computed(model, partition.points(rank))
    found["output"] = gather(found["output"], [part.numel() for part in partition.data.parts], group)
    return found


def exchanged(rank: int, group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Send r + p rows from process r to p, and weigh what arrives by (p + 1): rows and their gradient."""
    sent, received = ([rank + other for other in range(PROCESSES)] for _ in range(2))
    rows = torch.arange(sum(sent), dtype=torch.float64)[:, None] + 100 * rank
    rows.requires_grad_()
    arrived = all_to_all(rows, sent, received, group)
    (arrived * (rank + 1)).sum().backward()
    assert rows.grad is not None
    return {"arrived": arrived.detach(), "gradient": rows.grad}


def work(rank: int, folder: str) -> None:
    """Compute every case as one of the processes, and leave the results in a folder."""
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES, init_method=f"file://{folder}/meet")
    groups = {count: dist.new_group(list(range(count))) for count in (2, 3)}
    results = {"exchange": exchanged(rank, groups[3])}
    for case, (_, count, _) in CASES.items():
        if rank < count:
            results[case] = shared(case, rank, groups[count])
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def run_all(folder: Path) -> list[dict[str, dict[str, Tensor]]]:
    """Start the processes, wait for them, and return the results of each by case."""
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=PROCESSES)
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]
