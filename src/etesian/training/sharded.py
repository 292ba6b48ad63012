"""The strategy ``fsdp``: every process holds a part of the weights, gradients and optimiser state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from etesian.runtime.shards import shard_model, sharded_state, whole
from etesian.schema.training import TrainingSettings
from etesian.training.module import ForecastModule
from etesian.training.processes import DataParallel
from etesian.training.ranks import Ranks


class FullySharded(DataParallel):
    """Data parallel with a fully sharded model, see :mod:`etesian.runtime.shards`.

    Processes, their connection and what they reduce are those of :class:`DataParallel`. A checkpoint is gathered in the
    memory of the first process, which writes it: the file is that of any other run.

    Parameters
    ----------
    settings : TrainingSettings
        Section ``training``.
    ranks : Ranks, optional
        The processes of this run, where Slurm started them.
    """

    def __init__(self, settings: TrainingSettings, ranks: Ranks | None = None) -> None:
        super().__init__(ranks)
        self.settings = settings

    def model_to_device(self) -> None:
        """Divide the model, and put what this process holds on its device."""
        module, group = self.lightning_module, torch.distributed.group.WORLD
        assert isinstance(module, ForecastModule)
        assert group is not None
        shard_model(
            module.forecaster.model, group, self.root_device, self.settings.precision,
            reshard_after_forward=self.settings.strategy.reshard_after_forward,
        )  # fmt: skip
        super().model_to_device()

    def configure_ddp(self) -> None:
        """Wrap nothing: the units of the model gather and sum by themselves."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole weights, on the first process; every process has to call it."""
        weights: dict[str, Any] = whole(super().lightning_module_state_dict(), keep=self.is_global_zero)
        return weights if self.is_global_zero else {}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state of an optimiser, on the first process; every process has to call it."""
        state: dict[str, Any] = whole(super().optimizer_state(optimizer), keep=self.is_global_zero)
        return state if self.is_global_zero else {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Give every process its part of the optimisers' whole states."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
            optimizer.load_state_dict(sharded_state(state, parameters))

    def teardown(self) -> None:
        """Let go of the optimisers; what is divided is not moved to the CPU, as Lightning would, and goes as it is."""
        self.optimizers = []
        self.lr_scheduler_configs = []
        for part in (self.cluster_environment, self.precision_plugin, self.accelerator, self.checkpoint_io):
            assert part is not None
            part.teardown()
