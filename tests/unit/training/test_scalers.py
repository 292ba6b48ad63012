"""Weights of the scalers by hand, and what a user may get wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import ImputerSettings, NormalizerSettings
from etesian.schema.registry import kinds
from etesian.schema.training import LossSettings
from etesian.training.build_loss import build_loss, check_loss
from etesian.training.combined_loss import CombinedLoss
from etesian.training.loss_context import LossContext
from etesian.training.scalers import multiply

NAMES = ("t_850", "t_50", "2t", "lsm", "tp")
OUTPUTS = ("t_850", "t_50", "2t", "tp")
PRESSURE = {"t_850": {"mars": {"param": "t", "levtype": "pl", "levelist": 850}}, "2t": {"mars": {"param": "2t"}}}
LATITUDES, LONGITUDES = np.array([60.0, 60.0, 0.0]), np.array([350.0, 20.0, 350.0])


class Data(SimpleNamespace):
    """What scalers look at of a dataset: three points, five variables."""

    def statistics_tendencies(self, delta: Any) -> dict[str, np.ndarray]:
        if self.tendencies is None:
            raise KeyError("statistics_tendencies_6h_mean")
        return {"stdev": np.array(self.tendencies)}


def context(*scalers: dict[str, Any], loss: dict[str, Any] | None = None, **changes: Any) -> LossContext:
    """Return what a config with these scalers, named a, b, ..., looks at."""
    data = {
        "latitudes": LATITUDES, "longitudes": LONGITUDES, "variables_metadata": PRESSURE, "grids": (3,),
        "shape": (9, 5, 1, 3), "dates": np.arange("2020-01-01T00", "2020-01-03T00", 6, dtype="datetime64[h]"),
        "tendencies": [2.0, 4.0, 1.0, 0.0, 5.0],
        "statistics": {"stdev": np.array([10.0, 8.0, 4.0, 1.0, 2.0]), "mean": np.zeros(5)},
    } | changes  # fmt: skip
    named = dict(zip("abc", (kinds("scaler")[entry["kind"]].model_validate(entry) for entry in scalers), strict=False))
    loss = {"scalers": list(named)} | (loss or {"kind": "mse"})
    if "losses" in loss:
        loss["losses"] = [kinds("loss")[part["kind"]].model_validate(part) for part in loss["losses"]]
    settings: LossSettings = kinds("loss")[loss["kind"]].model_validate(loss)
    config: Any = SimpleNamespace(
        training=SimpleNamespace(scalers=named, training_loss=settings),
        task=SimpleNamespace(timestep=None, validation_rollout=3, rollout=SimpleNamespace(start=1, maximum=2)),
        data=SimpleNamespace(
            processors=SimpleNamespace(
                imputer=ImputerSettings(mean=changes.get("imputed", [])), normalizer=NormalizerSettings()
            )
        ),
    )
    split: Any = Data(**data)
    splits: Any = SimpleNamespace(training=split, validation=split, test=split)
    return LossContext(config, Variables(NAMES, ("lsm",), ("tp",)), splits)


def weights(*scalers: dict[str, Any], **changes: Any) -> list[list[float]]:
    made = context(*scalers, **changes)
    return multiply(list(made.config.training.scalers), made)[0].tolist()


def test_a_variable_its_parameter_and_the_default() -> None:
    given = {"kind": "variable", "default": 0.5, "weights": {"t_50": 3.0}, "parameters": {"t": 2.0, "tp": 0.0}}
    assert weights(given) == [[2.0, 3.0, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("shape", "expected"), [("relu", [0.85, 0.2]), ("linear", [1.05, 0.25]), ("polynomial", [0.9225, 0.2025])]
)
def test_levels(shape: str, expected: list[float]) -> None:
    """By metadata (t_850) and, where a variable has none, by name (t_50); 2t and tp are on no level."""
    found = weights({"kind": "pressure_level", "shape": shape, "slope": 0.001, "y_intercept": 0.2})
    assert found[0] == pytest.approx([*expected, 1.0, 1.0])


def test_tendencies() -> None:
    """The standard deviation over that of the change; diagnostics have a weight of 1."""
    assert weights({"kind": "tendency"})[0] == pytest.approx([5.0, 2.0, 4.0, 1.0])
    assert weights({"kind": "tendency", "statistic": "variance"})[0] == pytest.approx([25.0, 4.0, 16.0, 1.0])


def test_areas() -> None:
    box = {"kind": "limited_area", "area": [70, -20, 50, 15], "outside": 0.25}
    assert [row[0] for row in weights(box)] == [1.0, 0.25, 0.25]
    assert [row[0] for row in weights(box | {"area": [90, 0, -90, 360]})] == [1.0, 1.0, 1.0]
    assert [row[0] for row in weights(box | {"area": "cutout"}, grids=(2, 1))] == [1.0, 1.0, 0.25]


def test_scalers_are_multiplied() -> None:
    found = weights({"kind": "limited_area", "area": [70, -20, 50, 15]}, {"kind": "variable", "default": 2.0})
    assert found == [[2.0] * 4, [0.0] * 4, [0.0] * 4]


def test_steps() -> None:
    given = context({"kind": "lead_time", "weights": [1.0, 2.0, 0.0]}, {"kind": "lead_time_decay", "rate": 0.5})
    assert multiply(["a"], given)[1] == (1.0, 2.0, 0.0)
    assert multiply(["b"], given)[1] == pytest.approx((1.0, np.exp(-0.5), np.exp(-1.0)))
    assert multiply(["a", "b"], given)[1] == pytest.approx((1.0, 2 * np.exp(-0.5), 0.0))
    line = context({"kind": "lead_time_decay", "shape": "linear", "rate": 0.25})
    assert multiply(["a"], line)[1] == (1.0, 0.75, 0.5)
    assert multiply([], given)[1] == ()


def test_a_combination_shares_its_scalers() -> None:
    parts = [{"kind": "mse", "scalers": ["b"]}, {"kind": "crps"}]
    made = build_loss(
        context(
            {"kind": "variable", "default": 2.0}, {"kind": "variable", "default": 3.0},
            loss={"kind": "combined", "losses": parts, "scalers": ["a"], "loss_weights": [1.0, 0.5]},
            shape=(9, 5, 4, 3),
        )
    )  # fmt: skip
    assert isinstance(made, CombinedLoss)
    assert made.factors == (1.0, 0.5)
    assert [float(loss.weights.mean()) for loss in made.losses] == [6.0, 2.0]
    assert made.losses[0].weights.shape == torch.Size([3, 4])


ALL: dict[str, Any] = {"kind": "variable"}


@pytest.mark.parametrize(
    ("scaler", "changes", "where", "said"),
    [
        (ALL | {"weights": {"t_85": 1.0}}, {}, "training.scalers.a.weights.t_85", "did you mean 't_850'"),
        (ALL | {"parameters": {"t_850": 1.0}}, {}, "training.scalers.a.parameters.t_850", "t, 2t, tp"),
        (ALL | {"default": 0.0}, {}, "training.scalers", "a weight of 0"),
        ({"kind": "pressure_level", "shape": "linear", "slope": -1.0}, {}, "training.scalers.a", "t_850: -849.8"),
        ({"kind": "tendency"}, {"tendencies": None}, "training.scalers.a", "no statistics of the change"),
        ({"kind": "tendency"}, {"tendencies": [1.0, 0.0, 1.0, 1.0, 1.0]}, "training.scalers.a", "t_50 do not change"),
        ({"kind": "limited_area", "area": [1, 2]}, {}, "training.scalers.a.area", "2 bounds"),
        ({"kind": "limited_area", "area": [10, 0, 20, 5]}, {}, "training.scalers.a.area", "is no area"),
        ({"kind": "limited_area", "area": [10, 0, 5, 5]}, {}, "training.scalers.a.area", "no grid point"),
        ({"kind": "limited_area", "area": "cutout"}, {}, "training.scalers.a.area", "one grid"),
        ({"kind": "lead_time", "weights": [1.0]}, {}, "training.scalers.a.weights", "the longest rollout 3 steps"),
        ({"kind": "lead_time", "weights": [0.0, 1.0, 1.0]}, {}, "training.scalers.a.weights", "a rollout of 1 steps"),
        ({"kind": "lead_time_decay", "shape": "linear", "rate": 0.6}, {}, "training.scalers.a.rate", "at most 0.5"),
        (ALL, {"loss": {"kind": "crps"}}, "training.training_loss.kind", "the dataset has one"),
        (ALL, {"loss": {"kind": "spectral"}}, "training.training_loss.kind", "no rows of equal latitude"),
        (ALL, {"loss": {"kind": "spectral"}, "imputed": ["2t"]}, "training.training_loss.kind", "2t may hold NaNs"),
        ({"kind": "node_attribute"}, {"loss": {"kind": "spectral"}}, "training.training_loss.scalers", "grid points"),
    ],
    ids=str,
)
def test_mistakes(scaler: dict[str, Any], changes: dict[str, Any], where: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        check_loss(context(scaler, **changes))
    assert caught.value.problems[0].where == where
    assert said in str(caught.value)


def test_no_output_on_a_level() -> None:
    with pytest.raises(UserError, match="no output is on a pressure level"):
        weights({"kind": "pressure_level"}, variables_metadata={name: {"mars": {"param": "x"}} for name in NAMES})
