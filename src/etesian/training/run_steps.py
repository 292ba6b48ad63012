"""How many optimiser steps a run has, and how many samples a step."""

from __future__ import annotations

from etesian.schema.config import Config
from etesian.training.datamodule import ForecastDataModule


def samples_a_step(config: Config) -> int:
    """Return the samples of an optimiser step, those of all processes."""
    copies = config.system.hardware.model_copies
    return config.dataloader.batch_size.training * copies * config.training.accum_grad_batches


def epoch_steps(config: Config, datamodule: ForecastDataModule, rollout: int) -> int:
    """Return the optimiser steps of an epoch with that rollout."""
    loader = datamodule.loader("training", rollout, 0, config.system.hardware.model_copies, shuffle=True)
    return -(-len(loader) // config.training.accum_grad_batches)


def steps_of_run(config: Config, datamodule: ForecastDataModule) -> int:
    """Return the optimiser steps of the whole run."""
    training, rollout = config.training, config.task.rollout
    if training.max_epochs is None:
        assert training.max_steps is not None
        return training.max_steps
    epoch = total = 0
    while epoch < training.max_epochs:
        length = rollout.at_epoch(epoch)
        epochs = training.max_epochs - epoch
        if length < rollout.maximum:
            epochs = min(rollout.epoch_increment, epochs)
        total += epochs * epoch_steps(config, datamodule, length)
        epoch += epochs
    return min(total, training.max_steps or total)
