"""Losses against values worked out by hand, and closed forms in 64 bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from etesian.data.grids import named_grid
from etesian.errors import UserError
from etesian.inference.spectra import RowTransform
from etesian.training.combined_loss import CombinedLoss
from etesian.training.ensemble_loss import CRPSLoss
from etesian.training.losses import HuberLoss, LogCoshLoss, Loss, MAELoss, MSELoss, RMSELoss, lead_weight
from etesian.training.spectral_loss import SpectralLoss, SphericalAnalysis

WEIGHTS = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)  # two points, two variables
TARGET = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
FORECAST = torch.tensor([[[[1.0, 9.0], [-2.0, 3.0]]]], dtype=torch.float64)
LN_COSH = [math.log(math.cosh(error)) for error in (1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (MSELoss(WEIGHTS), (2 * 1 + 4 + 9) / 4),
        (RMSELoss(WEIGHTS), math.sqrt((2 * 1 + 4 + 9) / 4)),
        (MAELoss(WEIGHTS), (2 * 1 + 2 + 3) / 4),
        (HuberLoss(WEIGHTS, (), 1.5), (2 * 0.5 + 1.5 * (2 - 0.75) + 1.5 * (3 - 0.75)) / 4),
        (LogCoshLoss(WEIGHTS), (2 * LN_COSH[0] + LN_COSH[1] + LN_COSH[2]) / 4),
        (CombinedLoss([MSELoss(WEIGHTS), MAELoss(WEIGHTS)], [1.0, 0.5]), 15 / 4 + 0.5 * 7 / 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Loss) else "",
)
def test_by_hand(loss: Loss, expected: float) -> None:
    found = loss(FORECAST, TARGET)
    assert found.shape == (1,)
    assert float(found) == pytest.approx(expected, rel=1e-14)


def test_each_variable_alone() -> None:
    assert MAELoss(WEIGHTS, (1.0, 3.0)).by_variable(FORECAST, TARGET, None, 1, 2).tolist() == [[3.0, 2.25]]
    assert RMSELoss(WEIGHTS).by_variable(FORECAST, TARGET)[0].tolist() == pytest.approx([3**0.5, 4.5**0.5])
    both = CombinedLoss([MSELoss(WEIGHTS), MAELoss(WEIGHTS)], [1.0, 0.5])
    assert both.by_variable(FORECAST, TARGET).tolist() == [[4.0, 5.25]]
    loss, *place = spectral("coefficients")
    wave = waves(*place)
    assert loss.by_variable(wave, 0 * wave)[0].tolist() == pytest.approx([1 / 3, 0.0], rel=1e-6)


def test_what_was_not_observed_counts_as_zero() -> None:
    valid = torch.tensor([[[[True, True], [False, True]]]])
    assert float(MAELoss(WEIGHTS)(FORECAST, TARGET, valid)) == (2 + 3) / 4
    assert float(RMSELoss(WEIGHTS)(FORECAST, TARGET, valid)) == math.sqrt(11 / 4)


def test_the_root_has_a_gradient_where_there_is_no_error() -> None:
    forecast = torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    forecast[1, 0, 0, 0] = 3.0
    forecast.requires_grad_()
    loss = RMSELoss(WEIGHTS)(forecast, torch.zeros(2, 1, 2, 2, dtype=torch.float64))
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.0, math.sqrt(18 / 4)])
    assert forecast.grad is not None
    assert forecast.grad[0].abs().max() == 0
    assert forecast.grad[1, 0, 0, 0] == pytest.approx(math.sqrt(2 / 4))


def test_large_errors_do_not_overflow_log_cosh() -> None:
    forecast = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float32).view(1, 1, 3, 1).requires_grad_()
    LogCoshLoss(torch.ones(3, 1))(forecast, torch.zeros(1, 1, 3, 1)).sum().backward()
    assert forecast.grad is not None
    assert (3 * forecast.grad).flatten().tolist() == pytest.approx([-1.0, 0.0, 1.0])


def test_steps_of_a_rollout_have_a_mean_weight_of_one() -> None:
    assert [lead_weight((1.0, 3.0, 8.0), step, 2) for step in range(2)] == [0.5, 1.5]
    assert lead_weight((), 1, 2) == 1.0
    loss = MAELoss(WEIGHTS, (1.0, 3.0))
    assert float(loss(FORECAST, TARGET, None, 1, 2)) == 1.5 * 7 / 4
    assert float(CombinedLoss([loss], [2.0])(FORECAST, TARGET, None, 0, 2)) == 7 / 4


def test_parts_of_a_combination_keep_their_points() -> None:
    loss = CombinedLoss([MSELoss(WEIGHTS), MAELoss(WEIGHTS)], [1.0, 0.5])
    loss.keep(slice(0, 1), 0.5)
    assert float(loss(FORECAST[:, :, :1], TARGET[:, :, :1])) == pytest.approx((2 + 0.5 * 2) / 4)


@pytest.mark.parametrize("alpha", [0.0, 0.95, 1.0])
def test_crps_by_its_definition(alpha: float) -> None:
    """Every pair of members written out; the truth is one."""
    members, truth = [0.5, -1.0, 2.0], 0.25
    epsilon, count = (1 - alpha) / 3, 3
    pairs = [(j, k) for j in range(count) for k in range(count) if j != k]
    expected = sum(
        abs(members[j] - truth) + abs(members[k] - truth) - (1 - epsilon) * abs(members[j] - members[k])
        for j, k in pairs
    ) / (2 * count * (count - 1))
    forecast = torch.tensor(members, dtype=torch.float64).view(1, 3, 1, 1)
    loss = CRPSLoss(torch.ones(1, 1, dtype=torch.float64), (), alpha)
    assert float(loss(forecast, torch.full((1, 1, 1, 1), truth, dtype=torch.float64))) == pytest.approx(expected)


def test_crps_of_a_normal_ensemble() -> None:
    """The fair score of many members nears sigma (2 phi(0) - 1 / sqrt(pi)) for a truth at the mean."""
    generator = torch.Generator().manual_seed(0)
    forecast = torch.randn(1, 8, 40_000, 1, generator=generator, dtype=torch.float64)
    loss = CRPSLoss(torch.ones(40_000, 1, dtype=torch.float64), (), 1.0)
    expected = 2 / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    assert float(loss(forecast, torch.zeros(1, 1, 40_000, 1, dtype=torch.float64))) == pytest.approx(expected, rel=0.01)


def test_each_member_of_the_data_is_a_truth() -> None:
    generator = torch.Generator().manual_seed(0)
    forecast, target = (torch.randn(2, 3, 4, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    loss = CRPSLoss(torch.ones(4, 2, dtype=torch.float64), (), 0.95)
    each = [loss(forecast, target[:, member : member + 1]) for member in range(3)]
    torch.testing.assert_close(loss(forecast, target), torch.stack(each).mean(0))
    valid = torch.ones(2, 3, 4, 2, dtype=torch.bool)
    valid[:, 1, 0] = False
    masked = CRPSLoss(torch.tensor([0.0, 1, 1, 1], dtype=torch.float64)[:, None].expand(4, 2), (), 0.95)
    torch.testing.assert_close(loss(forecast, target, valid), masked(forecast, target))


def spectral(distance: str, floor: float = 1e-6) -> tuple[SpectralLoss, np.ndarray, np.ndarray]:
    grid = named_grid("regular-10deg")
    analysis = SphericalAnalysis(grid.latitudes, grid.longitudes).double()
    weights = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    return SpectralLoss(analysis, weights, (), distance, floor), grid.latitudes, grid.longitudes


def waves(latitudes: np.ndarray, longitudes: np.ndarray, shift: float = 0.0) -> Tensor:
    """Return cos(latitude) cos(longitude - shift), total wavenumber 1, and 0: [1, 1, G, 2]."""
    field = np.cos(np.deg2rad(latitudes)) * np.cos(np.deg2rad(longitudes - shift))
    return torch.from_numpy(np.stack([field, 0 * field], -1))[None, None]


def test_the_power_is_that_of_the_evaluation() -> None:
    loss, latitudes, longitudes = spectral("coefficients")
    fields = torch.randn(1, 1, latitudes.size, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = loss.analysis.power(loss.analysis(fields))[0, 0]
    np.testing.assert_allclose(found, RowTransform(latitudes, longitudes).power(fields[0, 0].T.numpy()), rtol=1e-6)


def test_spectra_of_a_wave() -> None:
    """The mean square of a wave of total wavenumber 1 is 1/3; turned by 90 degrees its difference has twice that."""
    loss, *place = spectral("coefficients")
    wave = waves(*place)
    assert float(loss(wave, torch.zeros_like(wave))) == pytest.approx(1 / 3 / 2, rel=1e-6)
    assert float(loss(waves(*place, 90.0), wave)) == pytest.approx(2 / 3 / 2, rel=1e-6)
    loss, *place = spectral("log_power", floor=1e-2)
    assert float(loss(waves(*place, 90.0), wave)) == pytest.approx(0.0, abs=1e-8)
    ratio = math.log((4 / 3 + 1e-2) / (1 / 3 + 1e-2))
    assert float(loss(2 * wave, wave)) == pytest.approx(ratio**2 / (loss.analysis.truncation + 1) / 2, rel=1e-6)


def test_grids_without_a_spectrum() -> None:
    for name, said in (("o8", "the rows of the grid have 20 to"), ("regular-10deg", "up to 8, not 9")):
        grid = named_grid(name)
        with pytest.raises(UserError, match=said):
            SphericalAnalysis(grid.latitudes, grid.longitudes, 9)
    with pytest.raises(UserError, match="no rows of equal latitude"):
        SphericalAnalysis(np.linspace(10.0, 20.0, 30), np.linspace(0.0, 40.0, 30))


@pytest.mark.parametrize("distance", ["log_power", "coefficients"])
def test_a_field_descends_to_the_spectrum_of_another(distance: str) -> None:
    loss, latitudes, _ = spectral(distance)
    generator = torch.Generator().manual_seed(0)
    field, target = (torch.randn(1, 1, latitudes.size, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    field.requires_grad_()
    optimizer = torch.optim.Adam([field], lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        value = loss(field, target).sum()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]
