"""An imported model beside the peer's own: the same input, the same output."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch

from etesian.checkpoint.peer.source import PeerCheckpoint
from etesian.errors import UserError
from etesian.inference.forecaster import Forecaster

TOLERANCE = 1e-5
"""Largest deviation in 32 bits, in units of the largest value."""


def can_verify() -> bool:
    """Tell whether anemoi-models is installed."""
    try:
        return importlib.util.find_spec("anemoi.models") is not None
    except ModuleNotFoundError:
        return False


def verify(source: PeerCheckpoint, forecaster: Forecaster) -> float:
    """Run the model of anemoi-models with the checkpoint's weights beside the imported one, on random numbers.

    The peer's model is built from the config; its classes are imported and run, the pickle still is not.

    Returns
    -------
    float
        The deviation, in units of the largest value.

    Raises
    ------
    UserError
        If the peer can't build its model, or the outputs differ.
    """
    variables, steps = source.variables, forecaster.multistep_input
    x = torch.randn(  # this model of the peer takes one ensemble member

        2, steps, 1, source.graph[source.dataset].num_nodes, len(variables.input),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with torch.no_grad():
        theirs = _peer(source, steps)({source.dataset: x.clone()})[source.dataset][:, 0]
        own = forecaster.model(x)
    deviation = float((own - theirs).abs().max() / theirs.abs().max())
    if not deviation <= TOLERANCE:
        raise UserError(
            f"the imported model is {deviation:.1e} apart from that of anemoi-models, on random numbers",
            where=str(source.path),
            allowed=f"at most {TOLERANCE:.0e}",
        )
    return deviation


def _peer(source: PeerCheckpoint, steps: int) -> Any:
    """Return the peer's model with the weights of the checkpoint."""
    logging.getLogger("anemoi.models").setLevel(logging.ERROR)  # it warns of its attention's backend at every block
    try:
        from anemoi.models.data_indices.collection import IndexCollection
        from anemoi.models.interface import AnemoiModelInterface
        from omegaconf import OmegaConf

        config = OmegaConf.create(source.config)
        names = {name: number for number, name in enumerate(source.variables.names)}
        section = config.data.datasets[source.dataset] if "datasets" in config.data else config.data
        interface = AnemoiModelInterface(
            config=config, n_step_input=steps, n_step_output=1, graph_data=source.graph,
            statistics={source.dataset: {k: v.copy() for k, v in source.statistics.items()}},
            data_indices={source.dataset: IndexCollection(section, names)},
            metadata={"metadata_inference": {source.dataset: {}}}, supporting_arrays={},
        )  # fmt: skip
        interface.load_state_dict(source.state)
    except Exception as cause:  # whatever another version of the peer makes of it
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise UserError(
            f"anemoi-models can't build the model of {source.path} to compare with: {type(cause).__name__}: {reason}",
            where=str(source.path),
            allowed="anemoi-models 0.19",
            mend="--no-verify imports without comparing",
        ) from cause
    return interface.model.eval()
