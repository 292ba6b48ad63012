"""The Lightning module: training and validation steps and their logging, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from etesian.inference.forecaster import Forecaster
from etesian.runtime.step_graphs import Recorder, StepGraphs
from etesian.schema.task import TaskSettings
from etesian.schema.training import OptimizationSettings
from etesian.training.losses import WeightedLoss
from etesian.training.optimizer import adopt, build_optimizer, clip_gradients, learning_rate_factor
from etesian.training.shared_model import SharedModel


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
    recorder : Recorder, optional
        What records training steps, as ``training.cuda_graphs`` asks; without, every operation is launched by itself.
    shared : SharedModel, optional
        What leaves this process its part of the model, where several share it.
    logged : mapping of str to int
        Outputs whose part of the validation loss is logged, and their places among the outputs.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        loss: WeightedLoss,
        task: TaskSettings,
        optimization: OptimizationSettings,
        run_steps: int,
        recorder: Recorder | None = None,
        shared: SharedModel | None = None,
        logged: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.forecaster = forecaster
        self.loss = loss
        self.task = task
        self.optimization = optimization
        self.run_steps = run_steps
        self.recorder = recorder
        self.shared = shared
        self.graphs: StepGraphs | None = None
        self.logged = dict(logged or {})
        self._validation_sum: Tensor | None = None  # [weight, loss x weight, and that of each logged variable]

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
        return torch.stack([self.loss(*pair) for pair in self.rollout(x, steps)]).mean(0)

    def rollout(self, x: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Yield forecast and target of each step, normalised, and where the target was observed.

        Parameters
        ----------
        x : Tensor, shape (B, T_in + steps, E, G, V)
            Physical units.
        steps : int
            Number of states to forecast.

        Yields
        ------
        forecast, target : Tensor, shape (B, E, G, V_out)
        observed : Tensor of bool, same shape, or None
            None where no variable is imputed.
        """
        outputs, first = self.forecaster.data_output, self.forecaster.multistep_input
        imputed = self.forecaster.imputer.variables
        observed = torch.isfinite(x[:, first:].index_select(-1, outputs)) if imputed else None
        normalised = self.forecaster.prepare(x)
        targets = normalised[:, first:].index_select(-1, outputs)  # [B, steps, E, G, V_out]
        for step, forecast in enumerate(self.forecaster.forecast_normalised(normalised, steps)):
            yield forecast, targets[:, step], None if observed is None else observed[:, step]

    def on_train_epoch_start(self) -> None:
        """Choose the order of the samples of this epoch."""
        loader = self.trainer.train_dataloader
        assert loader is not None
        loader.batch_sampler.set_epoch(self.current_epoch)

    def setup(self, stage: str) -> None:
        """Leave this process its part of the model and the data, once the processes are connected."""
        if self.shared is not None:
            self.shared.connect(self.trainer)
            self.shared.leave_part(self.forecaster.model)
            self.shared.share(self.loss, self.trainer.datamodule)  # type: ignore[attr-defined]

    def on_fit_start(self) -> None:
        """Make what holds the recorded steps."""
        if self.recorder is not None:
            accumulates = self.trainer.accumulate_grad_batches > 1
            self.graphs = StepGraphs(
                self, self._recorded_loss, self._recorded_backward, self.recorder, accumulates=accumulates
            )

    def teardown(self, stage: str) -> None:
        """Give the memory of the recorded steps back."""
        self.graphs = None

    def mean_loss(self, x: Tensor) -> Tensor:
        """Return the mean loss of a batch x [B, T_in + steps, E, G, V]."""
        return self.rollout_loss(x, x.shape[1] - self.forecaster.multistep_input).mean()

    def _recorded_loss(self, x: Tensor) -> Tensor:
        with self.trainer.precision_plugin.forward_context():
            return self.mean_loss(x)

    def _recorded_backward(self, loss: Tensor) -> None:
        share = loss / self.trainer.accumulate_grad_batches
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        (share if scaler is None else scaler.scale(share)).backward()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the mean loss of a batch; a recorded step has added its gradients then."""
        x = batch["x"]
        if self.graphs is None:
            loss = self.mean_loss(x)
        else:
            if batch_idx % self.trainer.accumulate_grad_batches == 0:
                self.graphs.zero_grad()
            loss = self.graphs.run(x)
        size, steps = x.shape[0], x.shape[1] - self.forecaster.multistep_input
        self.log("train_loss", loss, on_step=True, on_epoch=False, prog_bar=True, sync_dist=True, batch_size=size)
        # Tensors on the CPU: a plain number would be copied to the device, and each copy waits for it.
        rate = torch.tensor(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.log("lr", rate, on_step=True, on_epoch=False, batch_size=size)
        if self.task.rollout.epoch_increment:
            self.log("rollout", torch.tensor(float(steps)), on_step=True, on_epoch=False, batch_size=size)
        return loss

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Add the gradients of a loss, unless the recorded step did."""
        if self.graphs is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Drop the gradients; those of recorded steps stay where they are, and are set to 0 before the step."""
        if self.graphs is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def on_validation_model_zero_grad(self) -> None:
        """Give the memory of the gradients back for the validation, but for those that recorded steps add up."""
        if self.graphs is None:
            super().on_validation_model_zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients; Lightning's own way refuses every fused optimiser in mixed precision."""
        clip_gradients(self.parameters(), gradient_clip_val, gradient_clip_algorithm)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the optimiser of a checkpoint go on under this run's implementation."""
        for state in checkpoint["optimizer_states"]:
            adopt(state, self.optimization.optimizer.implementation)

    def on_validation_epoch_start(self) -> None:
        """Start the sums over the validation period."""
        self._validation_sum = torch.zeros(2 + len(self.logged), dtype=torch.float64, device=self.device)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add the losses of a batch; samples that only fill up a batch weigh nothing."""
        losses, parts = [], []
        for pair in self.rollout(batch["x"], self.task.validation_rollout):
            losses.append(self.loss(*pair))
            if self.logged:
                parts.append(self.loss.by_variable(*pair)[:, list(self.logged.values())])
        weight = batch["weight"].double()
        assert self._validation_sum is not None
        self._validation_sum[0] += weight.sum()
        self._validation_sum[1] += (torch.stack(losses).mean(0).double() * weight).sum()
        if parts:
            self._validation_sum[2:] += weight @ torch.stack(parts).mean(0).double()

    def on_validation_epoch_end(self) -> None:
        """Log the mean over every sample of every process."""
        assert self._validation_sum is not None
        total = self.trainer.strategy.reduce(self._validation_sum, reduce_op="sum")
        assert isinstance(total, Tensor)
        loss, *parts = total[1:] / total[0]
        self.log("val_loss", loss, prog_bar=True)
        for name, part in zip(self.logged, parts, strict=True):
            self.log(f"val_loss/{name}", part)
        self._validation_sum = None

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Make the optimiser and the schedule, which advances every optimiser step."""
        optimizer = build_optimizer(self.optimization, self.parameters())
        factor = learning_rate_factor(self.optimization.lr_scheduler, self.optimization.lr, self.run_steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
