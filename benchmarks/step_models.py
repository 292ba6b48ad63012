"""What ``training_step.py`` times: whole training steps of the peer, forecasts alone, and the processor alone.

Steps of this package's own models are those of :class:`etesian.training.bench_steps.StepModel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.data.imputer import Imputer
from etesian.data.normalizer import Normalizer
from etesian.graph.attributes import edge_directions, edge_lengths, normalise
from etesian.graph.build import HIDDEN_TO_HIDDEN
from etesian.graph.icosphere import build_icosphere
from etesian.graph.nodes import to_latlon
from etesian.inference.forecaster import Forecaster
from etesian.kernels.machine import Machine
from etesian.kernels.resolve import ComponentKernels
from etesian.model.decoder import OUTPUT_GAIN
from etesian.model.fields import ModelFields
from etesian.model.graphtransformer import GraphTransformerSettings
from etesian.runtime.compile import Compilation
from etesian.schema.graph import GraphSettings
from etesian.training.bench_steps import StepModel
from etesian.training.experiment import Experiment
from etesian.training.fit import build_forecaster
from etesian.training.step_times import norm_of_gradients
from peer_model import PeerModel, PeerOptions, take_weights


def first_weights(experiment: Experiment, graph: HeteroData) -> dict[str, Tensor]:
    """Return the first weights that all models take, by name.

    The output head has the size of other layers. As a model has it, the forecast is next to persistence, and a loss
    that agrees would say nothing of the model.
    """
    torch.manual_seed(experiment.config.training.seed)
    weights = {name: weight.detach() for name, weight in build_forecaster(experiment, graph).named_parameters()}
    for name, weight in weights.items():
        if name.startswith("model.decoder.output."):
            weight.div_(OUTPUT_GAIN)
    return weights


class PeerStepModel(StepModel):
    """Whole training steps of the peer's model: normalisation, loss and optimiser are those of an experiment.

    Parameters
    ----------
    experiment, graph, batch, weights
        See :class:`~etesian.training.bench_steps.StepModel`.
    options : PeerOptions
        How the peer is run.
    """

    def __init__(
        self,
        experiment: Experiment,
        graph: HeteroData,
        batch: Tensor,
        weights: dict[str, Tensor],
        options: PeerOptions,
    ) -> None:
        self.options = options
        super().__init__(experiment, graph, batch, weights)

    def make_forecaster(self, experiment: Experiment, graph: HeteroData, weights: dict[str, Tensor]) -> Forecaster:
        """Make a forecaster of the peer's model with those weights."""
        config, variables = experiment.config, experiment.variables
        statistics: Any = experiment.splits.training.statistics
        normalizer = Normalizer(variables, statistics, config.data.processors.normalizer)
        outputs = variables.data_output
        fields = ModelFields(
            variables.input, variables.output, config.task.multistep_input,
            normalizer.scale[outputs], normalizer.offset[outputs],
        )  # fmt: skip
        assert isinstance(config.model, GraphTransformerSettings)
        model = PeerModel(config.model, graph, fields, self.options)
        take_weights(model, {name.removeprefix("model."): weight for name, weight in weights.items()})
        self.compilation = model.compilation
        imputer = Imputer(variables, statistics, config.data.processors.imputer)
        return Forecaster(model, normalizer, imputer, variables, config.task.multistep_input)


class ForecastSteps:
    """Forecasts alone: the model's forward pass on normalised input, without gradients.

    Parameters
    ----------
    model : StepModel
        Whose model it is.
    """

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.forecaster = model.module.forecaster.eval()
        self.input: Tensor | None = None
        self.forecast: Tensor | None = None

    @property
    def loss(self) -> Tensor | None:
        """Mean square of the last forecast, to be compared with that of other models."""
        return None if self.forecast is None else self.forecast.double().square().mean()

    def step(self, number: int = 0) -> None:
        """Make one forecast; the input is normalised before the first on a device."""
        if self.input is None:
            states = self.model.batch[:, : self.forecaster.multistep_input]
            self.input = self.forecaster.prepare(states)[..., self.forecaster.variables.data_input]
        with torch.no_grad(), self.model.machine.context():
            self.forecast = self.forecaster.model(self.input)

    def to(self, device: torch.device) -> None:
        """Move the model; the batch stays on the device of the run."""
        self.drop()
        self.input = None
        self.model.to(device)

    def drop(self) -> None:
        """Drop the forecast."""
        self.forecast = None

    def gradient_norm(self) -> None:
        """There are no gradients."""

    def graphs(self) -> int:
        """Return how many graphs torch compiled."""
        return self.model.graphs()


class OwnProcessor(nn.Module):
    """This package's processor by itself, under the name that it has in a model.

    Parameters
    ----------
    settings : GraphTransformerSettings
        Section ``model``.
    graph : HeteroData
        With the hidden nodes and the edges among them.
    kernels : ComponentKernels
        Where every layer comes from.
    """

    def __init__(self, settings: GraphTransformerSettings, graph: HeteroData, kernels: ComponentKernels) -> None:
        super().__init__()
        learnt = settings.edge_trainable_parameters
        self.processor = settings.processor.build(settings.num_channels, graph, learnt, kernels.processor)

    def forward(self, x: Tensor, copies: int) -> Tensor:
        """Map hidden nodes [(copies N_hidden), C] to the same shape."""
        return self.processor(x, copies)


class ProcessorSteps:
    """Forward and backward pass of a processor on random nodes; no optimiser.

    Parameters
    ----------
    module : nn.Module
        Called with nodes and copies.
    compilation : Compilation
        What of it is compiled.
    x : Tensor, shape (N, C)
        The nodes, on the CPU.
    precision : str
        ``training.precision``.
    """

    def __init__(self, module: nn.Module, compilation: Compilation, x: Tensor, precision: Any) -> None:
        self.module, self.compilation, self.precision = module.train(), compilation, precision
        self.x = x.clone().requires_grad_()
        self.loss: Tensor | None = None

    def step(self, number: int = 0) -> None:
        """Run forward and backward."""
        self.drop()
        with Machine(self.x.device, self.precision).context():
            out = self.module(self.x, 1)
        loss = out.float().square().mean()
        loss.backward()
        self.loss = loss.detach()

    def to(self, device: torch.device) -> None:
        """Move weights and nodes."""
        self.drop()
        self.module.to(device)
        self.x = self.x.detach().to(device).requires_grad_()

    def drop(self) -> None:
        """Drop the gradients."""
        self.module.zero_grad(set_to_none=True)
        self.x.grad = None

    def gradient_norm(self) -> float:
        """Return the norm of the gradients of all weights."""
        return norm_of_gradients(self.module)

    def graphs(self) -> int:
        """Return how many graphs torch compiled."""
        self.compilation.check()
        return self.compilation.graphs


def mesh_graph(settings: GraphSettings) -> HeteroData:
    """Return the hidden nodes and the edges among them, as a whole graph has them."""
    sphere = build_icosphere(settings.nodes.hidden.resolution)
    edges, norms = settings.edges.hidden2hidden, settings.edge_attributes
    levels = edges.scale_resolutions or list(range(sphere.resolution + 1))
    index, latlon = sphere.multi_scale_edges(levels, edges.x_hops), to_latlon(sphere.xyz)
    graph = HeteroData()
    graph["hidden"].x = torch.from_numpy(latlon.astype(np.float32))
    store = graph[HIDDEN_TO_HIDDEN]
    store.edge_index = torch.from_numpy(index)
    length = edge_lengths(sphere.xyz, sphere.xyz, index)
    direction = edge_directions(sphere.xyz, sphere.xyz, latlon, index)
    for name, values, norm in (("edge_length", length, norms.edge_length), ("edge_dirs", direction, norms.edge_dirs)):
        store[name] = torch.from_numpy(normalise(values, norm, name, "hidden2hidden").astype(np.float32))
    return graph
