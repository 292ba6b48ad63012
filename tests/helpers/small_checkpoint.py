"""A checkpoint as a run writes it, of a small model with random weights: ``from small_checkpoint import write``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_model import make_graph

from etesian import __version__
from etesian.checkpoint.content import FORMAT, STATISTICS, describe_experiment
from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.data.variables import Variables
from etesian.inference.assemble import assemble_forecaster
from etesian.inference.forecaster import Forecaster
from etesian.kernels.resolve import resolve_kernels

VARIABLES = Variables(("t", "insolation", "q", "tp"), forcing=("insolation",), diagnostic=("tp",))

OPTIONS = [
    "model.num_channels=16", "model.encoder.num_heads=2", "model.processor.num_heads=2", "model.decoder.num_heads=2",
    "model.processor.num_layers=2", "data.forcing=[insolation]", "data.diagnostic=[tp]",
    "data.processors.normalizer.none=[insolation]", "task.multistep_input=2", "model.residual.step=-1",
]  # fmt: skip


DATASET = {
    "metadata": {
        "variables": list(VARIABLES.names), "arguments": {"args": ["small.zarr"], "kwargs": {}}, "shape": [8, 4, 1, 14],
        "frequency": "6h", "variables_metadata": {"t": {"units": "K"}, "insolation": {"computed_forcing": True}},
    },
    "first": "2000-01-01T00:00:00", "last": "2000-01-02T18:00:00", "dates": 8, "step": {"months": 0, "seconds": 21600},
}  # fmt: skip

RUN = {"id": "small", "environment": {"python": "3.11.0", "versions": {"torch": "2.6.0"}, "git": None}}


def coordinates() -> dict[str, torch.Tensor]:
    """Return latitudes and longitudes of the 14 points, degrees."""
    latlons = torch.rad2deg(make_graph()["data"].x.double())
    return {"latitudes": latlons[:, 0], "longitudes": latlons[:, 1]}


def make(*overrides: str) -> tuple[dict[str, Any], Forecaster]:
    """Return a checkpoint and the forecaster that it is of."""
    composed = compose("train", None, [*OPTIONS, *overrides])
    config = check_tree(composed)
    preset = composed.choices["model/layer_kernels"]
    kernels = resolve_kernels(config.model, preset=preset, overrides=composed.overrides)
    generator = np.random.default_rng(0)
    statistics = {name: generator.uniform(1, 2, len(VARIABLES.names)) + 3 * (name == "maximum") for name in STATISTICS}
    graph = make_graph()
    torch.manual_seed(0)
    forecaster = assemble_forecaster(config, VARIABLES, statistics, graph, kernels)
    forecaster = forecaster.double() if config.training.precision == "64-true" else forecaster
    with torch.no_grad():
        for parameter in forecaster.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tree = config.model_dump(mode="json", by_alias=True)
    content = describe_experiment(
        tree, kernels.records, VARIABLES, statistics, graph, dataset=DATASET, coordinates=coordinates(), run=RUN
    )
    checkpoint = {
        "etesian": {"format": FORMAT, "version": __version__, **content, "random": {}},
        "state_dict": {f"forecaster.{name}": value for name, value in forecaster.state_dict().items()},
        "loops": {}, "optimizer_states": [], "lr_schedulers": [], "global_step": 30, "epoch": 2,
    }  # fmt: skip
    return checkpoint, forecaster.eval()


def write(path: Path, *overrides: str) -> Forecaster:
    """Write such a checkpoint and return the forecaster that it is of."""
    checkpoint, forecaster = make(*overrides)
    torch.save(checkpoint, path)
    return forecaster


def states(steps: int = 3, seed: int = 1) -> torch.Tensor:
    """Return fields in physical units, [1, T, 1, G, V], for a rollout of so many steps less one."""
    generator = torch.Generator().manual_seed(seed)
    return 1.5 + torch.randn(1, 1 + steps, 1, 14, len(VARIABLES.names), generator=generator)
