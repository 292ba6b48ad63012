"""Bounds of outputs, in physical units."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from small_model import make_fields, make_model, make_settings

from etesian.errors import UserError
from etesian.model.bounding import FractionSettings, HardtanhSettings, ReluSettings, build_bounding
from etesian.schema.registry import kinds

FIELDS = make_fields()


def bounded(settings: list, physical: torch.Tensor, residual: bool = False) -> torch.Tensor:
    """Bound values given in physical units and return them in physical units."""
    layer = build_bounding(settings, FIELDS, residual=residual)
    normalised = physical * FIELDS.output_scale + FIELDS.output_offset
    return (layer(normalised) - FIELDS.output_offset) / FIELDS.output_scale


def test_relu_keeps_values_above_the_bound() -> None:
    physical = torch.tensor([[250.0, -0.01, 0.2], [300.0, 0.02, -0.3]])
    expected = torch.tensor([[250.0, 0.0, 0.2], [300.0, 0.02, 0.0]])
    got = bounded([ReluSettings(kind="relu", variables=["tp", "q"])], physical)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_relu_takes_another_bound() -> None:
    got = bounded([ReluSettings(kind="relu", variables=["t"], min_val=271.0)], torch.tensor([250.0, 0.0, 0.0]))
    torch.testing.assert_close(got, torch.tensor([271.0, 0.0, 0.0]), rtol=0, atol=1e-4)


def test_hardtanh_keeps_values_between_the_bounds() -> None:
    physical = torch.tensor([[100.0, 0.0, 0.0], [280.0, 0.0, 0.0], [400.0, 0.0, 0.0]])
    got = bounded([HardtanhSettings(kind="hardtanh", variables=["t"], min_val=200.0, max_val=330.0)], physical)
    torch.testing.assert_close(got[:, 0], torch.tensor([200.0, 280.0, 330.0]), rtol=0, atol=1e-3)


def test_fraction_is_a_part_of_the_total_in_physical_units() -> None:
    layer = build_bounding(
        [FractionSettings(kind="fraction", variables=["tp"], total_variable="q")], FIELDS, residual=False
    )
    scale, offset = FIELDS.output_scale, FIELDS.output_offset
    total = 0.02
    raw = torch.tensor([-0.5, 0.25, 1.7])  # what the network gives for tp: read as the fraction
    y = torch.stack([torch.zeros(3), torch.full((3,), total * scale[1] + offset[1]), raw], dim=-1)
    got = (layer(y)[:, 2] - offset[2]) / scale[2]
    torch.testing.assert_close(got, torch.tensor([0.0, 0.25 * total, total]), rtol=0, atol=1e-6)


def test_bounds_are_applied_in_order() -> None:
    up = ReluSettings(kind="relu", variables=["t"], min_val=300.0)
    down = HardtanhSettings(kind="hardtanh", variables=["t"], min_val=0.0, max_val=290.0)
    physical = torch.tensor([250.0, 0.0, 0.0])
    assert bounded([up, down], physical)[0] == pytest.approx(290.0, abs=1e-3)
    assert bounded([down, up], physical)[0] == pytest.approx(300.0, abs=1e-3)


def test_the_model_applies_its_bounds_after_the_residual() -> None:
    settings = make_settings(
        bounding=[HardtanhSettings(kind="hardtanh", variables=["t"], min_val=279.0, max_val=281.0)]
    )
    x = 100 * torch.randn(1, 2, 1, 14, 3)
    t = (make_model(settings)(x)[..., 0] + 28.0) / 0.1
    assert t.min() >= 279.0 - 1e-3
    assert t.max() <= 281.0 + 1e-3


@pytest.mark.parametrize(
    ("bound", "where", "message"),
    [
        (ReluSettings(kind="relu", variables=["t", "tpp"]), "model.bounding[0].variables", "'tpp' is not an output"),
        (
            FractionSettings(kind="fraction", variables=["tp"], total_variable="Q_"),
            "model.bounding[0].total_variable",
            "'Q_' is not an output",
        ),
        (ReluSettings(kind="relu", variables=["insolation"]), "model.bounding[0].variables", "not an output"),
        (
            FractionSettings(kind="fraction", variables=["tp"], total_variable="tp"),
            "model.bounding[0].variables",
            "fraction of itself",
        ),
        (
            FractionSettings(kind="fraction", variables=["q"], total_variable="tp"),
            "model.bounding[0].variables",
            "'q' is prognostic",
        ),
    ],
)
def test_variables_that_can_not_be_bounded_are_refused(bound: object, where: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_bounding([bound], FIELDS, residual=True)
    assert caught.value.problems[0].where == where


def test_a_misspelt_variable_gets_the_nearest_name() -> None:
    with pytest.raises(UserError) as caught:
        build_bounding([ReluSettings(kind="relu", variables=["tpp"])], FIELDS, residual=True)
    assert caught.value.problems[0].mend == "did you mean 'tp'?"
    assert caught.value.problems[0].allowed == "t, q, tp"


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"min_val=2.0 is not below max_val=1.0"):
        HardtanhSettings(kind="hardtanh", variables=["t"], min_val=2.0, max_val=1.0)


def test_the_kinds_are_registered() -> None:
    assert set(kinds("bounding")) >= {"relu", "hardtanh", "fraction"}
    assert "graphtransformer" in kinds("model")
