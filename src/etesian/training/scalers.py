"""Scalers: fixed weights of the loss over grid points, variables and the steps of a rollout.

Each kind declares its section of the config beside it and registers it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from etesian.errors import Problem, UserError, did_you_mean
from etesian.schema.registry import register
from etesian.schema.training import ScalerSettings
from etesian.training.loss_context import LossContext

Axis = Literal["points", "variables", "steps"]


class Scaler(ScalerSettings):
    """What every kind of scaler has."""

    over: ClassVar[Axis]
    """What the weights are of: points (G, 1), variables (1, V_out) or the steps of the longest rollout (S,)."""
    reads_graph: ClassVar[bool] = False
    """Whether there are no weights before there is a graph."""

    @abstractmethod
    def weights(self, key: str, context: LossContext) -> Tensor:
        """Return the weights, float64, of the shape that :attr:`over` says.

        Raises
        ------
        UserError
            If they can't be had, with `key`, the section's.
        """


@register("scaler", "node_attribute")
class NodeAttributeScaler(Scaler):
    """Weight of each data node from an attribute of the graph, scaled to a mean of one."""

    over = "points"
    reads_graph = True

    kind: Literal["node_attribute"] = "node_attribute"
    attribute: Literal["area_weight"] = "area_weight"
    """Attribute of the data nodes."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        assert context.graph is not None
        attribute: Tensor = context.graph["data"][self.attribute].double()
        return attribute / attribute.mean()


@register("scaler", "limited_area")
class LimitedAreaScaler(Scaler):
    """Weight of 1 for the points of an area, another for those outside."""

    over = "points"

    kind: Literal["limited_area"] = "limited_area"
    area: list[float] | Literal["cutout"]
    """Northern, western, southern and eastern bound, degrees; or ``cutout``, the first grid of such a dataset."""
    outside: float = Field(default=0.0, ge=0)
    """Weight of the points outside."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        where = f"{key}.area"
        inside = self._cutout(where, context) if self.area == "cutout" else self._box(where, context)
        if not inside.any():
            raise UserError(f"no grid point lies in {where}={self.area}", where=where)
        return torch.from_numpy(np.where(inside, 1.0, self.outside))[:, None]

    def _box(self, where: str, context: LossContext) -> np.ndarray:
        allowed = "[north, west, south, east] in degrees, north above south"
        if len(self.area) != 4:
            raise UserError(f"{where} has {len(self.area)} bounds", where=where, allowed=allowed)
        north, west, south, east = map(float, self.area)
        if north <= south or abs(north) > 90 or abs(south) > 90:
            raise UserError(f"{where}={self.area} is no area", where=where, allowed=allowed)
        width = 360.0 if abs(east - west) >= 360.0 else (east - west) % 360.0
        latitudes, longitudes = context.data.latitudes, context.data.longitudes
        return (latitudes >= south) & (latitudes <= north) & ((longitudes - west) % 360.0 <= width)

    def _cutout(self, where: str, context: LossContext) -> np.ndarray:
        grids = tuple(getattr(context.data, "grids", ()))
        if len(grids) < 2:
            raise UserError(
                f"{where}='cutout', but the dataset has one grid", where=where,
                allowed="with a dataset_config of cutout: cutout; with any: [north, west, south, east] in degrees",
            )  # fmt: skip
        return np.arange(context.data.latitudes.size) < grids[0]


@register("scaler", "variable")
class VariableScaler(Scaler):
    """Weight of each output variable: its own, else that of its parameter, else ``default``."""

    over = "variables"

    kind: Literal["variable"] = "variable"
    default: float = Field(default=1.0, ge=0)
    """Weight of the outputs that are not named."""
    weights_by_name: dict[str, Annotated[float, Field(ge=0)]] = Field(default={}, alias="weights")
    """Output variable to weight."""
    parameters: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Parameter, such as ``t`` of ``t_850``, to the weight of its outputs at all levels."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        outputs = context.outputs
        parameters = {name: context.parameters[name][0] for name in outputs}
        known = list(dict.fromkeys(parameters.values()))
        problems = [
            *_unknown(self.weights_by_name, outputs, f"{key}.weights", "an output"),
            *_unknown(self.parameters, known, f"{key}.parameters", "a parameter of the outputs"),
        ]
        if problems:
            raise UserError.collect(problems)
        of_parameter = {name: self.parameters.get(parameters[name], self.default) for name in outputs}
        return _row([self.weights_by_name.get(name, of_parameter[name]) for name in outputs])


@register("scaler", "pressure_level")
class PressureLevelScaler(Scaler):
    """Weight of each output on a pressure level p, hPa; outputs on none have a weight of 1."""

    over = "variables"

    kind: Literal["pressure_level"] = "pressure_level"
    shape: Literal["relu", "linear", "polynomial"] = "relu"
    """relu: max(slope p, y_intercept); linear: slope p + y_intercept; polynomial: (slope p)^2 + y_intercept."""
    slope: float = 0.001
    """Per hPa."""
    y_intercept: float = 0.2
    """Least weight (relu), or the weight at 0 hPa."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        levels = {name: context.parameters[name][1] for name in context.outputs}
        found = {name: self.at(level) for name, level in levels.items() if level is not None}
        if not found:
            raise UserError(
                "no output is on a pressure level", where=key,
                allowed="a dataset whose metadata name pressure levels, or variables such as t_850",
                mend="take the scaler out of training.training_loss.scalers",
            )  # fmt: skip
        if wrong := [f"{name}: {weight:g}" for name, weight in found.items() if weight < 0]:
            what = f"the weights of {', '.join(wrong)} are below 0"
            raise UserError(what, where=key, allowed="slope and y_intercept that leave every weight at 0 or more")
        return _row([found.get(name, 1.0) for name in context.outputs])

    def at(self, level: float) -> float:
        """Return the weight at a pressure level, hPa."""
        rising = self.slope * level
        if self.shape == "relu":
            return max(rising, self.y_intercept)
        return (rising if self.shape == "linear" else rising**2) + self.y_intercept


@register("scaler", "tendency")
class TendencyScaler(Scaler):
    """Weight of each prognostic output: 1 over the standard deviation of its change in one step, normalised units."""

    over = "variables"

    kind: Literal["tendency"] = "tendency"
    statistic: Literal["stdev", "variance"] = "stdev"
    """``variance`` takes the square, which suits a squared error."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        try:
            stdev = context.tendency_stdev()[context.variables.data_output]
        except LookupError as error:
            raise UserError(
                "the dataset has no statistics of the change of its variables in one step", where=key,
                allowed="a dataset that was made with statistics of tendencies for task.timestep",
                mend="take the scaler out of training.training_loss.scalers",
            ) from error  # fmt: skip
        changes = dict(zip(context.outputs, stdev * context.scale, strict=True))
        changes = {name: changes[name] for name in context.outputs if name in context.variables.prognostic}
        if still := [name for name, change in changes.items() if not (np.isfinite(change) and change > 0)]:
            what = f"the dataset's statistics say that {', '.join(still)} do not change, or are not finite"
            raise UserError(what, where=key, mend=f"data.forcing: [..., {still[0]}]")
        power = 2 if self.statistic == "variance" else 1
        return _row([changes[name] ** -power if name in changes else 1.0 for name in context.outputs])


@register("scaler", "lead_time")
class LeadTimeScaler(Scaler):
    """Weight of each step of a rollout; within a rollout they are scaled to a mean of one."""

    over = "steps"

    kind: Literal["lead_time"] = "lead_time"
    step_weights: list[Annotated[float, Field(ge=0)]] = Field(alias="weights", min_length=1)
    """One for each step of the longest rollout in training or validation."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        longest, where = context.rollouts[-1], f"{key}.weights"
        if len(self.step_weights) != longest:
            what = f"{where} has {len(self.step_weights)} entries, and the longest rollout {longest} steps"
            raise UserError(what, where=where, allowed=f"{longest} numbers of at least 0")
        return _steps(where, self.step_weights, context.rollouts)


@register("scaler", "lead_time_decay")
class LeadTimeDecayScaler(Scaler):
    """Weight that falls from step to step of a rollout, s = 0, 1, ...; scaled to a mean of one within it."""

    over = "steps"

    kind: Literal["lead_time_decay"] = "lead_time_decay"
    shape: Literal["exponential", "linear"] = "exponential"
    """exponential: exp(-rate s); linear: 1 - rate s."""
    rate: float
    """Per step; below 0 the weight rises."""

    def weights(self, key: str, context: LossContext) -> Tensor:  # noqa: D102
        longest = context.rollouts[-1]
        passed = np.arange(longest)
        values = np.exp(-self.rate * passed) if self.shape == "exponential" else 1.0 - self.rate * passed
        if not (np.isfinite(values).all() and (values >= 0).all()):
            what = f"{key}.rate={self.rate} leaves a rollout of {longest} steps weights below 0, or infinite ones"
            allowed = f"at most {1 / (longest - 1):g}" if self.shape == "linear" and self.rate > 0 else "a smaller rate"
            raise UserError(what, where=f"{key}.rate", allowed=allowed)
        return _steps(f"{key}.rate", values.tolist(), context.rollouts)


def multiply(names: Sequence[str], context: LossContext) -> tuple[Tensor, tuple[float, ...]]:
    """Multiply scalers.

    Parameters
    ----------
    names : sequence of str
        Names under ``training.scalers``.
    context : LossContext
        What they look at; without a graph, those that read it are left out.

    Returns
    -------
    weights : Tensor, shape (G, V_out), or (1, V_out) where none is over points; float64
        The weight of each point and output variable.
    leads : tuple of float
        The weight of each step of the longest rollout; empty where they are all the same.
    """
    points = torch.ones(1, len(context.outputs), dtype=torch.float64)
    steps: Tensor | None = None
    for name in dict.fromkeys(names):
        scaler = context.config.training.scalers[name]
        assert isinstance(scaler, Scaler)
        if scaler.reads_graph and context.graph is None:
            continue
        weights, where = scaler.weights(f"training.scalers.{name}", context), f"training.scalers.{name}"
        if scaler.over == "steps":
            steps = weights if steps is None else _steps(where, (steps * weights).tolist(), context.rollouts)
        else:
            points = points * weights
    if not bool(points.any()):
        raise UserError(
            f"the scalers {', '.join(names)} leave every output a weight of 0",
            where="training.scalers",
            allowed="at least one weight above 0",
        )
    return points, () if steps is None else tuple(steps.tolist())


def _unknown(named: dict[str, float], known: Sequence[str], key: str, what: str) -> list[Problem]:
    return [
        Problem(f"{name!r} is not {what} of the model", f"{key}.{name}", ", ".join(known), did_you_mean(name, known))
        for name in named
        if name not in known
    ]


def _row(values: Sequence[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def _steps(where: str, values: Sequence[float], rollouts: Sequence[int]) -> Tensor:
    """Return the weights of the steps, if every rollout has one above 0."""
    if nothing := [length for length in rollouts if not sum(values[:length]) > 0]:
        what = f"a rollout of {nothing[0]} steps has weights of 0 alone"
        raise UserError(what, where=where, allowed="a weight above 0 within the shortest rollout")
    return torch.tensor(values, dtype=torch.float64)
