"""The stand-in of a model: its kind, kernels and modules, in little."""

from __future__ import annotations

import pytest
import torch

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.kernels.resolve import resolve_kernels
from etesian.model.bounding import Clamp, Fraction
from etesian.model.miniature import build_miniature, miniature_input, miniature_settings
from etesian.schema.registry import kinds

BOUNDS = (
    "model.bounding=[{kind:hardtanh,variables:[tp,sf],min_val:0,max_val:9},"
    "{kind:fraction,variables:[cp],total_variable:tp}]"
)


def settings_of(*overrides: str):
    return check_tree(compose("train", None, overrides)).model


@pytest.mark.parametrize("kind", kinds("model"))
def test_it_runs_and_every_parameter_gets_a_gradient(kind: str) -> None:
    levels = ["graph=hierarchical", "graph.nodes.hidden.resolution=2"] if kind == "hierarchical" else []
    settings = settings_of(f"model={kind}", *levels, "model.residual.step=-2", "task.multistep_input=3", BOUNDS)
    model = build_miniature(settings, resolve_kernels(settings, preset=None, overrides=[]))
    assert {type(module) for module in model.bounding} == {Clamp, Fraction}
    y = model(miniature_input(settings, torch.float32))
    assert y.shape == (2, 1, 12, 4)
    y.square().mean().backward()
    wanting = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert wanting == []


def test_it_is_small() -> None:
    settings = settings_of("model.num_channels=1024", "model.processor.num_layers=16", "model.encoder.num_heads=8")
    small = miniature_settings(settings)
    assert small.num_channels == 8 * 16
    assert small.processor.num_layers == 1
    assert miniature_settings(settings_of("model.num_channels=4")).num_channels == 4
    assert miniature_settings(small) == small
