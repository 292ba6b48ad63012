"""Which layer is named where one fails in the middle of a run."""

from __future__ import annotations

import pytest
import torch
from small_model import make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.kernels.failures import naming_kernels
from etesian.kernels.resolve import ComponentKernels, resolve_kernels

NORM = "faulty_kernels.FailsOnManyRows"


class Raises(nn.Module):
    """An activation that raises what it is told to."""

    error: BaseException = RuntimeError("no")

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.fixture
def kernels() -> ComponentKernels:
    decoder = {"num_heads": 2, "layer_kernels": {"LayerNorm": {"_target_": NORM}}}
    mapping = {"Activation": {"_target_": "test_failures.Raises"}}
    return resolve_kernels(make_settings(layer_kernels=mapping, decoder=decoder), preset=None, overrides=[])


def test_the_slot_is_named(kernels: ComponentKernels) -> None:
    model = nn.Sequential(kernels.decoder.LayerNorm(4))
    with pytest.raises(UserError) as caught, naming_kernels(kernels):
        model(torch.zeros(99, 4))
    (problem,) = caught.value.problems
    assert problem.what.startswith(f"slot LayerNorm of the decoder: {NORM} failed at ")
    assert "faulty_kernels.py:" in problem.what
    assert problem.what.endswith(": RuntimeError: too many rows: 99")
    key = "model.decoder.layer_kernels.LayerNorm"
    assert (problem.where, problem.mend) == (key, f"correct the kernel, or {key}._target_=torch.nn.LayerNorm")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_innermost_layer_is_named(kernels: ComponentKernels) -> None:
    mlp = kernels.model.MLP(4, 8, 4, layer_kernels=kernels.model)
    with (
        pytest.raises(UserError, match="slot Activation of the model") as caught,
        naming_kernels(kernels),
    ):
        mlp(torch.zeros(2, 4))
    assert caught.value.problems[0].where == "model.layer_kernels.Activation"


@pytest.mark.parametrize(
    "error",
    [
        UserError("mine"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: you tried"),
        KeyboardInterrupt(),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_the_fault_of_a_layer_passes(
    kernels: ComponentKernels, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raises, "error", error)
    layer = kernels.model.Activation()
    with pytest.raises(type(error)) as caught, naming_kernels(kernels):
        layer(torch.zeros(1))
    assert caught.value is error


def test_what_fails_outside_of_the_layers_passes(kernels: ComponentKernels) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), naming_kernels(kernels):
        nn.Linear(2, 2)(torch.zeros(3, 3))
