"""One step as anemoi-inference asks for it."""

from __future__ import annotations

import pytest
import small_checkpoint
import torch


def test_a_step_is_that_of_the_rollout() -> None:
    forecaster = small_checkpoint.make()[1]
    x = small_checkpoint.states(1)  # [1, 2, 1, 14, 4]
    inputs = x[:, :, 0][..., forecaster.variables.data_input]  # [1, 2, 14, 3]
    found = forecaster.predict_step({"data": inputs}, fcstep=0, step=None, date=None)["data"]
    assert found.shape == (1, 1, 1, 14, 3)
    torch.testing.assert_close(found, forecaster.rollout(x, 1), rtol=0, atol=0)


def test_numbers_come_back_in_the_dtype_they_came_in() -> None:
    forecaster = small_checkpoint.make("training.precision=64-true")[1]
    inputs = small_checkpoint.states(1)[:, :, 0][..., forecaster.variables.data_input]
    assert inputs.dtype == torch.float32
    assert forecaster.predict_step({"data": inputs})["data"].dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"other": torch.zeros(1, 2, 14, 3)}, "the datasets are 'other', not 'data'"),
        ({"data": torch.zeros(1, 2, 14, 4)}, r"not \(batch, 2 states, grid points, 3 variables\)"),
        ({"data": torch.zeros(1, 1, 14, 3)}, "2 states"),
        ({"data": torch.full((1, 2, 14, 3), torch.nan)}, "holds NaNs in variables without an imputer"),
    ],
)
def test_what_is_no_input(x: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_checkpoint.make()[1].predict_step(x)
