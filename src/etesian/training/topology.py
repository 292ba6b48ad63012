"""Which process of a run does what: those that share one model, and those that hold the same part of theirs.

With 8 processes and ``system.hardware.num_gpus_per_model=4`` processes 0 to 3 share a model and 4 to 7 another. Those
of one model see the same samples and a part of the grid each; processes 0 and 4, 1 and 5, ... hold the same part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DATA, MODEL = "data", "model"
"""Names of the dimensions of the mesh."""


@dataclass(frozen=True)
class Topology:
    """The place of this process among those of a run.

    Attributes
    ----------
    world : int
        Processes of the run, ``data_size * model_size``.
    model_size, data_size : int
        Processes that share one model, and models.
    model_rank, data_rank : int
        Which of those that share its model this process is, and of which model; its rank in the run is
        ``data_rank * model_size + model_rank``, so that a model lies on neighbours.
    mesh : DeviceMesh or None
        All processes, [data_size, model_size], with dimensions named :data:`DATA` and :data:`MODEL`; None where they
        are not connected.
    model_group, data_group : ProcessGroup or None
        Connection among the processes that share this model, and among those of other models that hold the same part.
    """

    world: int
    model_size: int
    data_size: int
    model_rank: int
    data_rank: int
    mesh: DeviceMesh | None = None
    model_group: ProcessGroup | None = None
    data_group: ProcessGroup | None = None

    @classmethod
    def place(cls, rank: int, world: int, model_size: int) -> Topology:
        """Return the place of a process, without connections.

        Raises
        ------
        ValueError
            If `world` is no multiple of `model_size`, or has no such rank.
        """
        if model_size < 1 or world % model_size or not 0 <= rank < world:
            raise ValueError(f"{rank=}, {world=}, {model_size=}")
        data_rank, model_rank = divmod(rank, model_size)
        return cls(world, model_size, world // model_size, model_rank, data_rank)

    def connected(self, device: torch.device) -> Topology:
        """Return the same with mesh and groups.

        Every process of a run has to call it, as often and in the same order, once the run's process group is there.

        Parameters
        ----------
        device : torch.device
            That of this process; only its kind counts.
        """
        names = (DATA, MODEL)
        mesh = init_device_mesh(device.type, (self.data_size, self.model_size), mesh_dim_names=names)
        return replace(self, mesh=mesh, model_group=mesh.get_group(MODEL), data_group=mesh.get_group(DATA))
