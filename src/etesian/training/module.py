"""The Lightning module: training and validation steps and their logging, nothing else."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from etesian.inference.forecaster import Forecaster
from etesian.schema.task import TaskSettings
from etesian.schema.training import OptimizationSettings
from etesian.training.losses import WeightedLoss
from etesian.training.optimizer import build_optimizer, learning_rate_factor


class ForecastModule(pl.LightningModule):
    """Trains a forecaster on the mean loss of a rollout.

    Parameters
    ----------
    forecaster : Forecaster
        Model, normaliser and imputer.
    loss : WeightedLoss
        Loss of each sample.
    task : TaskSettings
        Length of the rollout in training and validation.
    optimization : OptimizationSettings
        Optimiser and schedule.
    run_steps : int
        Optimiser steps of the whole run.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        loss: WeightedLoss,
        task: TaskSettings,
        optimization: OptimizationSettings,
        run_steps: int,
    ) -> None:
        super().__init__()
        self.forecaster = forecaster
        self.loss = loss
        self.task = task
        self.optimization = optimization
        self.run_steps = run_steps
        self._validation_sum: Tensor | None = None  # [loss x weight, weight]

    def rollout_loss(self, x: Tensor, steps: int) -> Tensor:
        """Return the loss of each sample, the mean over the steps of a rollout.

        Parameters
        ----------
        x : Tensor, shape (B, T_in + steps, E, G, V)
            Physical units.
        steps : int
            Number of states to forecast.

        Returns
        -------
        Tensor, shape (B,)
        """
        variables, first = self.forecaster.variables, self.forecaster.multistep_input
        outputs = variables.data_output
        observed = torch.isfinite(x[:, first:][..., outputs]) if self.forecaster.imputer.variables else None
        normalised = self.forecaster.prepare(x)
        targets = normalised[:, first:][..., outputs]  # [B, steps, E, G, V_out]
        losses = [
            self.loss(forecast, targets[:, step], None if observed is None else observed[:, step])
            for step, forecast in enumerate(self.forecaster.forecast_normalised(normalised, steps))
        ]
        return torch.stack(losses).mean(0)

    def on_train_epoch_start(self) -> None:
        """Choose the order of the samples of this epoch."""
        loader = self.trainer.train_dataloader
        assert loader is not None
        loader.batch_sampler.set_epoch(self.current_epoch)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the mean loss of a batch."""
        steps = batch["x"].shape[1] - self.forecaster.multistep_input
        loss = self.rollout_loss(batch["x"], steps).mean()
        size = batch["x"].shape[0]
        self.log("train_loss", loss, on_step=True, on_epoch=False, prog_bar=True, sync_dist=True, batch_size=size)
        self.log("lr", self.trainer.optimizers[0].param_groups[0]["lr"], on_step=True, on_epoch=False, batch_size=size)
        if self.task.rollout.epoch_increment:
            self.log("rollout", float(steps), on_step=True, on_epoch=False, batch_size=size)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Start the sums over the validation period."""
        self._validation_sum = torch.zeros(2, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add the losses of a batch; samples that only fill up a batch weigh nothing."""
        losses = self.rollout_loss(batch["x"], self.task.validation_rollout).double()
        weight = batch["weight"].double()
        assert self._validation_sum is not None
        self._validation_sum += torch.stack([(losses * weight).sum(), weight.sum()])

    def on_validation_epoch_end(self) -> None:
        """Log the mean over every sample of every process."""
        assert self._validation_sum is not None
        total = self.trainer.strategy.reduce(self._validation_sum, reduce_op="sum")
        assert isinstance(total, Tensor)
        self.log("val_loss", total[0] / total[1], prog_bar=True)
        self._validation_sum = None

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Make the optimiser and the schedule, which advances every optimiser step."""
        optimizer = build_optimizer(self.optimization, self.parameters())
        factor = learning_rate_factor(self.optimization.lr_scheduler, self.optimization.lr, self.run_steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
