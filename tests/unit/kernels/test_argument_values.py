"""Arguments of kernels that nothing would read, or that would say the opposite of what they mean."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from small_model import make_settings
from torch import nn

from etesian.errors import Problem, UserError
from etesian.kernels.resolve import resolve_kernels

KEY = "model.layer_kernels"


class Typed(nn.LayerNorm):
    def __init__(
        self,
        num_channels: int,
        depth: Optional[int] = None,  # noqa: UP045
        mode: bool | str = False,
        kind: str = "plain",
        anything: Any = 1.0,
        scale: float = 1,
        shape: tuple[int, ...] | int = 1,
        untyped=None,
        fast=True,
    ) -> None:
        super().__init__(num_channels)


class UnknownAnnotation(nn.LayerNorm):
    def __init__(self, num_channels: int, eps: NotImported = 1e-6) -> None:  # noqa: F821
        super().__init__(num_channels, eps=eps)


class HandsOn(nn.LayerNorm):
    def __init__(self, num_channels: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_channels, *args, **kwargs)


class HandsOnTwice(HandsOn):
    def __init__(self, num_channels: int, extra: int = 1, **kwargs: Any) -> None:
        super().__init__(num_channels, **kwargs)


class Swallows(nn.Module):
    def __init__(self, num_channels: int, **kwargs: Any) -> None:
        super().__init__()


def hands_on(num_channels: int, **kwargs: Any) -> nn.LayerNorm:
    return nn.LayerNorm(num_channels, **kwargs)


def swallows(num_channels: int, **kwargs: Any) -> nn.Module:
    return nn.LayerNorm(num_channels)


def found(slot: str, target: str, **arguments: Any) -> tuple[Problem, ...]:
    settings = make_settings(layer_kernels={slot: {"_target_": target, **arguments}})
    try:
        resolve_kernels(settings, preset=None, overrides=[])
    except UserError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    ("slot", "target", "argument", "value", "allowed", "mend"),
    [
        ("Linear", "torch.nn.Linear", "bias", "no", "true or false", "false"),
        ("Linear", "torch.nn.Linear", "bias", "On", "true or false", "true"),
        ("Linear", "torch.nn.Linear", "bias", 0, "true or false", None),
        ("Linear", "torch.nn.Linear", "bias", None, "true or false", None),
        ("LayerNorm", "torch.nn.LayerNorm", "elementwise_affine", "false", "true or false", "false"),
        ("LayerNorm", "torch.nn.LayerNorm", "eps", True, "a number", None),
        ("LayerNorm", "torch.nn.LayerNorm", "eps", "1e-5", "a number", "1e-5"),
        ("LayerNorm", "torch.nn.LayerNorm", "eps", "small", "a number", None),
        ("LayerNorm", "torch.nn.RMSNorm", "eps", [1e-5], "a number or null", None),
        ("LayerNorm", "test_argument_values.Typed", "depth", 1.5, "a whole number or null", None),
        ("LayerNorm", "test_argument_values.Typed", "depth", "3", "a whole number or null", "3"),
        ("LayerNorm", "test_argument_values.Typed", "mode", 1.5, "true or false or a string", None),
        ("LayerNorm", "test_argument_values.Typed", "kind", True, "a string", None),
        ("LayerNorm", "test_argument_values.Typed", "fast", "no", "true or false", "false"),
        ("LayerNorm", "test_argument_values.UnknownAnnotation", "eps", "no", "a number", None),
        ("LayerNorm", "test_argument_values.HandsOnTwice", "bias", "no", "true or false", "false"),
        ("LayerNorm", "test_argument_values.hands_on", "bias", "no", "true or false", "false"),
        ("QueryNorm", "etesian.kernels.norms.AutocastLayerNorm", "bias", "no", "true or false", "false"),
        ("Activation", "torch.nn.GELU", "approximate", False, "a string", None),
    ],
)
def test_a_value_of_another_kind_is_refused(
    slot: str, target: str, argument: str, value: Any, allowed: str, mend: str | None
) -> None:
    (problem,) = found(slot, target, **{argument: value})
    key = f"{KEY}.{slot}.{argument}"
    assert f"{argument}={value!r} of {target} is " in problem.what
    assert (problem.where, problem.allowed) == (key, allowed)
    assert problem.mend == (None if mend is None else f"{key}={mend}")


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("torch.nn.LayerNorm", {"eps": 1, "bias": False, "elementwise_affine": True}),
        ("torch.nn.RMSNorm", {"eps": None}),
        ("torch.nn.LayerNorm", {"device": "cpu", "dtype": None}),
        ("test_argument_values.Typed", {"depth": 3, "mode": "fast", "kind": "x", "anything": "x", "scale": 0.5}),
        ("test_argument_values.Typed", {"depth": None, "mode": True, "shape": [1, 2], "untyped": "no"}),
        ("test_argument_values.HandsOn", {"eps": 1e-3, "bias": False}),
        ("test_argument_values.HandsOnTwice", {"extra": 2, "eps": 1e-3, "elementwise_affine": False}),
        ("test_argument_values.hands_on", {"eps": 1e-3}),
    ],
)
def test_what_fits_is_taken(target: str, arguments: dict[str, Any]) -> None:
    assert found("LayerNorm", target, **arguments) == ()


@pytest.mark.parametrize(
    ("slot", "target"),
    [
        ("Activation", "torch.nn.Identity"),
        ("LayerNorm", "torch.nn.Identity"),
        ("LayerNorm", "test_argument_values.Swallows"),
        ("LayerNorm", "test_argument_values.swallows"),
    ],
)
def test_what_would_be_swallowed_is_refused(slot: str, target: str) -> None:
    assert found(slot, target) == ()
    (problem,) = found(slot, target, epss=3)
    assert problem.what == f"slot {slot}: {target} does not take 'epss'; its **kwargs would swallow it"
    assert problem.where == f"{KEY}.{slot}.epss"


@pytest.mark.parametrize("target", ["HandsOn", "HandsOnTwice", "hands_on"])
def test_what_no_base_class_takes_is_refused(target: str) -> None:
    (problem,) = found("LayerNorm", f"test_argument_values.{target}", epss=3)
    assert "does not take 'epss'" in problem.what
    assert problem.mend == "did you mean 'eps'?"
