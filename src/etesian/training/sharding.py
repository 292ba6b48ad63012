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
from etesian.graph.partition import Partition
from etesian.model.encoder_processor_decoder import EncoderProcessorDecoder
from etesian.model.exchange import gather
from etesian.model.sharding import shard_model
from etesian.training.datamodule import ForecastDataModule
from etesian.training.losses import WeightedLoss
from etesian.training.topology import Topology


class ModelSharding:
    """Leaves each process its part of a model.

    Parameters
    ----------
    graph : HeteroData
        The graph of the model.
    count : int
        Processes that share a model, ``system.hardware.num_gpus_per_model``.

    Attributes
    ----------
    topology : Topology
        The place of this process, once it is connected.

    Raises
    ------
    UserError
        If the graph has fewer nodes than the processes are.
    """

    def __init__(self, graph: HeteroData, count: int) -> None:
        self.graph, self.partition = graph, Partition.of_graph(graph, count)
        self.topology: Topology | None = None

    def connect(self, trainer: pl.Trainer) -> None:
        """Connect the processes of each model; every process of the run does it."""
        place = Topology.place(trainer.global_rank, trainer.world_size, self.partition.count)
        self.topology = place.connected(trainer.strategy.root_device)

    def shard(self, model: nn.Module, loss: WeightedLoss, data: ForecastDataModule) -> None:
        """Leave model, loss and batches this process' part, in place."""
        place, partition = self._place(), self.partition
        assert isinstance(model, EncoderProcessorDecoder)
        assert place.model_group is not None
        shard_model(model, self.graph, partition, place.model_rank, place.model_group)
        points, everywhere = partition.points(place.model_rank), self.graph["data"].num_nodes
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
