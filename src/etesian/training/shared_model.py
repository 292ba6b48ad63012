"""One model over several processes: what each of them trains, and how their parts come together again.

Loss and gradients are those of one process, to rounding. The loss of a process is the sum of its points' part of the
mean over all points, times the number of processes that share the model. So the mean over all processes, by which
losses are logged and gradients come together, adds up the parts of a model and takes the mean over the models.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.data.windows import GridPart
from etesian.errors import Problem, UserError
from etesian.graph.partition import KEY, NodeParts, Partition
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.exchange import gather
from etesian.model.part import leave_part
from etesian.schema.model import ModelSettings
from etesian.training.datamodule import ForecastDataModule
from etesian.training.losses import WeightedLoss
from etesian.training.topology import Topology


class SharedModel:
    """Leaves each process its part of a model.

    Parameters
    ----------
    graph : HeteroData
        The graph of the model.
    count : int
        Processes that share a model, ``system.hardware.num_gpus_per_model``.
    settings : ModelSettings
        Section ``model``.

    Attributes
    ----------
    topology : Topology
        The place of this process, once it is connected.

    Raises
    ------
    UserError
        If the graph has fewer nodes than the processes are, or a process fewer than there are chunks of them.
    """

    def __init__(self, graph: HeteroData, count: int, settings: ModelSettings) -> None:
        self.graph, self.partition = graph, Partition.of_graph(graph, count)
        self.topology: Topology | None = None
        self._along_edges = settings.uses("processor", "GraphAttention")
        _check_chunks(self.partition, settings)

    def describe(self) -> str:
        """Say how the nodes are shared, and how many hidden nodes a process fetches for a layer, in one line."""
        shared = [f"{_range(self.partition.of(kind))} {kind} nodes" for kind in ("data", "hidden")]
        text = f"each model is shared by {self.partition.count} processes, of {' and '.join(shared)} each"
        if not self._along_edges:
            return text
        fetched = []
        for part in range(self.partition.count):
            received = self.partition.edges(self.graph, "hidden", "hidden", part, tiled=False).received
            fetched.append(sum(received) - received[part])
        return f"{text}; along the hidden edges at most {max(fetched):,} nodes are fetched"

    def connect(self, trainer: pl.Trainer) -> None:
        """Connect the processes of each model; every process of the run does it."""
        place = Topology.place(trainer.global_rank, trainer.world_size, self.partition.count)
        self.topology = place.connected(trainer.strategy.root_device)

    def leave_part(self, model: nn.Module) -> None:
        """Leave a whole model this process' part, in place."""
        place = self._place()
        assert isinstance(model, EncoderProcessorDecoder)
        assert place.model_group is not None
        leave_part(model, self.graph, self.partition, place.model_rank, place.model_group)

    def share(self, loss: WeightedLoss, data: ForecastDataModule) -> None:
        """Leave loss and batches this process' part, in place."""
        place = self._place()
        points, everywhere = self.partition.points(place.model_rank), self.graph["data"].num_nodes
        loss.keep(points, place.model_size * (points.stop - points.start) / everywhere)
        data.topology, data.part = place, GridPart(points, checks=place.model_rank == 0)

    @property
    def counts_scores(self) -> bool:
        """Whether the scores of this process count: one of those that share a model has them all."""
        return self._place().model_rank == 0

    def own_points(self, x: Tensor) -> Tensor:
        """Return this process' grid points of x [B, T, E, G, V]."""
        return x[:, :, :, self.partition.points(self._place().model_rank)]

    @torch.no_grad()
    def whole(self, states: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield states [B, E, G, V_out], made of the parts of all processes of a model, which call this together."""
        counts, group = [part.numel() for part in self.partition.data.parts], self._place().model_group
        assert group is not None
        for state in states:
            yield gather(state, counts, group)

    def _place(self) -> Topology:
        if self.topology is None:
            raise RuntimeError("the processes are not connected yet")
        return self.topology


def _range(nodes: NodeParts) -> str:
    sizes = sorted({len(part) for part in nodes.parts})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"


def _check_chunks(partition: Partition, settings: ModelSettings) -> None:
    problems = []
    for component, kind in (("encoder", "hidden"), ("decoder", "data")):
        where, chunks = f"model.{component}.num_chunks", getattr(settings, component).num_chunks
        fewest = min(part.numel() for part in partition.of(kind).parts)
        if chunks > fewest:
            what = f"{where}={chunks}, but a process has {fewest} of the {kind} nodes with {KEY}={partition.count}"
            problems.append(Problem(what, where, f"a whole number from 1 to {fewest}"))
    if problems:
        raise UserError.collect(problems)
