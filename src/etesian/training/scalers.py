"""Scalers: fixed weights of the loss over grid points and variables.

Each kind declares its section of the config beside it and registers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import HeteroData

from etesian.errors import Problem, UserError, did_you_mean
from etesian.schema.base import Section
from etesian.schema.registry import register
from etesian.schema.training import TrainingSettings


@register("scaler", "node_attribute")
class NodeAttributeScaler(Section):
    """Weight of each data node from an attribute of the graph, scaled to a mean of one."""

    kind: Literal["node_attribute"] = "node_attribute"
    attribute: Literal["area_weight"] = "area_weight"
    """Attribute of the data nodes."""

    def weights(self, key: str, graph: HeteroData, outputs: Sequence[str]) -> Tensor:
        """Return weights of shape (G, 1)."""
        attribute = graph["data"][self.attribute].double()
        return attribute / attribute.mean()


@register("scaler", "variable")
class VariableScaler(Section):
    """Weight of each output variable: its own, or ``default``."""

    kind: Literal["variable"] = "variable"
    default: float = Field(default=1.0, ge=0)
    """Weight of the outputs that are not named."""
    weights_by_name: dict[str, Annotated[float, Field(ge=0)]] = Field(default={}, alias="weights")
    """Output variable to weight."""

    def weights(self, key: str, graph: HeteroData, outputs: Sequence[str]) -> Tensor:
        """Return weights of shape (1, V_out).

        Raises
        ------
        UserError
            If a variable that is named is not an output of the model.
        """
        problems = [
            Problem(
                f"{name!r} is not an output of the model",
                where=f"{key}.weights.{name}",
                allowed=", ".join(outputs),
                mend=did_you_mean(name, outputs),
            )
            for name in self.weights_by_name
            if name not in outputs
        ]
        if problems:
            raise UserError.collect(problems)
        return torch.tensor([[self.weights_by_name.get(name, self.default) for name in outputs]], dtype=torch.float64)


def loss_weights(settings: TrainingSettings, graph: HeteroData, outputs: Sequence[str]) -> Tensor:
    """Multiply the scalers that the training loss names.

    Returns
    -------
    Tensor, shape (G, V_out), float64
        The weight of each point and output variable.
    """
    weights = torch.ones(graph["data"].num_nodes, len(outputs), dtype=torch.float64)
    for name in settings.training_loss.scalers:
        scaler = settings.scalers[name]
        assert isinstance(scaler, NodeAttributeScaler | VariableScaler)
        weights = weights * scaler.weights(f"training.scalers.{name}", graph, outputs)
    if not bool(weights.any()):
        raise UserError(
            f"the scalers {', '.join(settings.training_loss.scalers)} leave every output a weight of 0",
            where="training.scalers",
            allowed="at least one weight above 0",
        )
    return weights
