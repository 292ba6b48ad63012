"""Section ``system``: where the run takes place."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etesian.schema.base import Section
from etesian.schema.slurm import SlurmSettings


class HardwareSettings(Section):
    """Devices. On ``cpu``, ``num_gpus_per_node`` and ``num_gpus_per_model`` count processes."""

    accelerator: Literal["cpu", "cuda"] = "cpu"
    """Kind of device; nothing falls back to another."""
    num_gpus_per_node: int = Field(default=1, ge=1)
    """Devices, or processes on a CPU, a node."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes."""
    num_gpus_per_model: int = Field(default=1, ge=1)
    """Devices, or processes on a CPU, that share one model: each has a part of the grid. All devices together are a
    multiple of it; each such group is one of the data-parallel copies of the model."""

    @property
    def processes(self) -> int:
        """Processes of a run, one a device."""
        return self.num_nodes * self.num_gpus_per_node

    @property
    def model_copies(self) -> int:
        """Data-parallel copies of the model: groups of processes that see samples of their own."""
        return self.processes // self.num_gpus_per_model


class InputSettings(Section):
    """What is read."""

    dataset: str
    """Path of an anemoi dataset, or ``embedded:ncep-monthly-5deg``."""
    graph: str | None = None
    """File that the graph is kept in; null keeps it in the user's cache folder."""


class OutputSettings(Section):
    """What is written; a run writes to ``<root>/<run_id>``."""

    root: str = "outputs"
    """Folder of the runs."""


class SystemSettings(Section):
    """Devices, inputs and outputs."""

    hardware: HardwareSettings = HardwareSettings()
    """Devices."""
    input: InputSettings
    """What is read."""
    output: OutputSettings = OutputSettings()
    """What is written."""
    slurm: SlurmSettings | None = None
    """The Slurm job that ``anemoi-training submit`` asks for; null for runs that are not submitted."""
