"""Slurm's tasks as Lightning sees them."""

from __future__ import annotations

from pytorch_lightning.plugins.environments import SLURMEnvironment


class SlurmProcesses(SLURMEnvironment):
    """Slurm's tasks for Lightning, which neither requeues jobs nor compares numbers: `SlurmTask` does."""

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Leave it to :meth:`SlurmTask.check_size`."""

    @staticmethod
    def _validate_srun_variables() -> None:
        """Leave it to :meth:`SlurmTask.check_size`: any way of saying how many tasks there are will do."""
