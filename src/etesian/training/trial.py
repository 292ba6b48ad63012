"""A few steps of training in memory: the same computation as a run's, without its folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn

from etesian.kernels.failures import naming_kernels
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import COMPONENTS, ComponentKernels, KernelFactory, LayerKernels
from etesian.runtime.prepare import prepare_model
from etesian.schema.config import Config
from etesian.training.compiled import CompiledGraphs
from etesian.training.experiment import Experiment
from etesian.training.finite import FiniteLosses
from etesian.training.fit import build_datamodule, build_forecaster, build_module, computation
from etesian.training.quiet import quieten_lightning

_COMPONENTS = ("model", *COMPONENTS)


class Trial:
    """The untrained model of an experiment, and its first steps as often as one likes.

    Parameters
    ----------
    experiment : Experiment
        A checked experiment.

    Attributes
    ----------
    experiment : Experiment
        The experiment.
    forecaster : Forecaster
        Model, normaliser and imputer; the weights are those that the last training left.
    """

    def __init__(self, experiment: Experiment) -> None:
        experiment = replace(experiment, kernels=_noting(experiment.kernels))
        self.experiment = experiment
        with _undisturbed():
            torch.manual_seed(experiment.config.training.seed)
            self.graph = experiment.load_graph()
            self.forecaster = build_forecaster(experiment, self.graph)
            compilation = prepare_model(self.forecaster.model, experiment.config.model, experiment.kernels)
            self._counting = [CompiledGraphs(compilation)] if compilation.entries else []
        self._untrained = {name: value.clone() for name, value in self.forecaster.state_dict().items()}

    def kernels(self) -> dict[str, dict[str, KernelRecord]]:
        """Return the record of what each component fills each slot with, by component and slot."""
        noted = {(record.component, record.slot): record for record in self.experiment.kernels.records}
        used: dict[str, dict[str, KernelRecord]] = {}
        for component in _COMPONENTS:
            factories = vars(getattr(self.experiment.kernels, component))
            used[component] = {slot: noted[factory.record.component, slot] for slot, factory in factories.items()}
        return used

    def layers(self, slot: str, component: str) -> list[nn.Module]:
        """Return the layers that a slot made for a component."""
        factory = getattr(getattr(self.experiment.kernels, component), slot)
        assert isinstance(factory, _Noting)
        return factory.layers

    def train(self, config: Config) -> list[float]:
        """Train from the first weights on until ``training.max_steps`` of `config`, which else is the experiment's.

        Returns
        -------
        list of float
            The training loss of each optimiser step, as ``metrics.csv`` of a run has it.

        Raises
        ------
        UserError
            If a loss is no number.
        """
        steps = config.training.max_steps
        assert steps is not None
        experiment = replace(self.experiment, config=config)
        losses: dict[int, float] = {}
        with _undisturbed():
            quieten_lightning()
            torch.manual_seed(config.training.seed)
            self.forecaster.load_state_dict(self._untrained)
            module = build_module(experiment, self.forecaster, self.graph, steps)
            trainer = pl.Trainer(
                **computation(config),
                callbacks=[_Losses(losses), FiniteLosses(1), *self._counting],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                limit_val_batches=0,
                num_sanity_val_steps=0,
            )
            with naming_kernels(experiment.kernels):
                trainer.fit(module, build_datamodule(experiment))
        return [loss for _, loss in sorted(losses.items())]


class _Noting(KernelFactory):
    """A factory that keeps the layers it makes."""

    def __init__(self, factory: KernelFactory) -> None:
        super().__init__(factory.target, factory.record)
        self.layers: list[nn.Module] = []

    def __call__(self, *positional: Any, **keywords: Any) -> nn.Module:
        layer = super().__call__(*positional, **keywords)
        self.layers.append(layer)
        return layer


def _noting(kernels: ComponentKernels) -> ComponentKernels:
    def noting(layers: LayerKernels) -> LayerKernels:
        return LayerKernels(**{slot: _Noting(factory) for slot, factory in vars(layers).items()})

    return ComponentKernels(
        noting(kernels.model), noting(kernels.encoder), noting(kernels.processor), noting(kernels.decoder),
        kernels.records,
    )  # fmt: skip


class _Losses(Callback):
    """Notes the loss of the last batch of each optimiser step."""

    def __init__(self, losses: dict[int, float]) -> None:
        self.losses = losses

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch:
            self.losses[trainer.global_step] = float(trainer.callback_metrics["train_loss"])


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Set back what training sets for the whole process: random states, determinism, filters of warnings."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    with isolate_rng(), warnings.catch_warnings():
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic)
