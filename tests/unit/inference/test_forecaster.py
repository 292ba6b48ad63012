"""What a forecaster takes, and what it refuses at the door."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from small_checkpoint import VARIABLES, make, states

from etesian.commands import common
from etesian.inference.forecaster import Forecaster


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    common.register_kinds()
    return make()[1]


def with_nan(variable: str, state: int) -> torch.Tensor:
    x = states(3)
    x[0, state, 0, :3, VARIABLES.names.index(variable)] = torch.nan
    return x


def test_a_call_is_a_forecast_of_one_step(forecaster: Forecaster) -> None:
    one = forecaster(states(1))
    assert one.shape == (1, 1, 14, 3)
    assert not one.requires_grad
    assert torch.equal(one, forecaster.rollout(states(1), 1)[:, 0])


def test_other_floats_are_turned_into_those_of_the_model(forecaster: Forecaster) -> None:
    forecast = forecaster.rollout(states(3).double(), 3)
    assert forecast.dtype == torch.float32
    assert torch.equal(forecast, forecaster.rollout(states(3), 3))


@pytest.mark.parametrize(
    ("x", "steps", "error", "said"),
    [
        (states(2).numpy(), 1, TypeError, "x is a numpy.ndarray, not a torch.Tensor"),
        (states(2).long(), 1, TypeError, "torch.int64, not of a floating-point dtype"),
        (states(2), 1.0, TypeError, "steps is 1.0"),
        (states(2), True, TypeError, "steps is True"),
        (states(2), 0, ValueError, "steps is 0"),
        (states(2)[0], 1, ValueError, "(3, 1, 14, 4), not (batch, time, ensemble, grid points, 4 variables)"),
        (states(2)[..., :3], 1, ValueError, "(1, 3, 1, 14, 3), not (batch, time, ensemble, grid points, 4 variables)"),
        (states(2)[..., :3], 1, ValueError, "the variables are t, insolation, q, tp"),
        (states(2), 3, ValueError, "(1, 3, 1, 14, 4), 3 states: 3 step(s) need 4, 2 initial ones and 2 later ones"),
        (states(2)[:, :, :, :9], 1, ValueError, "(T, G, V) = (2, 9, 3), the model was built for (2, 14, 3)"),
        (states(2).to("meta"), 1, ValueError, "x is on meta, the model on cpu"),
        (with_nan("q", 1), 1, ValueError, "NaNs in variables without an imputer: q (3 in the initial states)"),
        (with_nan("insolation", 2), 2, ValueError, "insolation (3 in the later states)"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    forecaster: Forecaster, x: Any, steps: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=re.escape(said)):
        forecaster.rollout(x, steps)


@pytest.mark.parametrize(("variable", "state"), [("tp", 0), ("q", 2), ("insolation", 3)])
def test_nan_where_nothing_is_read_does_no_harm(forecaster: Forecaster, variable: str, state: int) -> None:
    """Of a diagnostic, of the later states but for the forcings, and of states beyond the last step."""
    assert torch.equal(forecaster.rollout(with_nan(variable, state), 2), forecaster.rollout(states(3), 2))


def test_nan_that_is_imputed_is_taken() -> None:
    imputing = make("data.processors.imputer.mean=[q]")[1]
    assert np.isfinite(imputing.rollout(with_nan("q", 1), 2).numpy()).all()
