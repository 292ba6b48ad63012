"""The optimiser's implementations: the same steps, and checkpoints that any of them goes on from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from etesian.schema.training import OptimizationSettings
from etesian.training.optimizer import adopt, build_optimizer, clip_gradients, learning_rate_factor

IMPLEMENTATIONS = ("for_loop", "foreach", "fused")


def settings(implementation: str) -> OptimizationSettings:
    optimizer = {"weight_decay": 0.1, "implementation": implementation}
    return OptimizationSettings.model_validate({"lr": 1e-2, "optimizer": optimizer, "lr_scheduler": {"warmup_t": 2}})


class Trained:
    """A few parameters with an optimiser and its schedule."""

    def __init__(self, implementation: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(3)]
        chosen = settings(implementation)
        self.optimizer = build_optimizer(chosen, self.parameters)
        factor = learning_rate_factor(chosen.lr_scheduler, chosen.lr, 8)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def steps(self, first: int, last: int) -> list[torch.Tensor]:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for parameter in self.parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            self.optimizer.step()
            self.schedule.step()
        return [parameter.detach().clone() for parameter in self.parameters]

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self.optimizer.state_dict())


def test_each_implementation_is_asked_of_torch() -> None:
    found = {name: Trained(name).optimizer.param_groups[0] for name in IMPLEMENTATIONS}
    assert {name: (group["foreach"], group["fused"]) for name, group in found.items()} == {
        "for_loop": (False, False), "foreach": (True, False), "fused": (False, True),
    }  # fmt: skip


@pytest.mark.parametrize("other", IMPLEMENTATIONS[1:])
def test_the_steps_are_the_same(other: str) -> None:
    for one, two in zip(Trained("for_loop").steps(0, 6), Trained(other).steps(0, 6), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("after", IMPLEMENTATIONS)
@pytest.mark.parametrize("before", IMPLEMENTATIONS)
def test_any_goes_on_from_the_checkpoint_of_any(before: str, after: str) -> None:
    expected = Trained("for_loop").steps(0, 6)
    stopped, resumed = Trained(before), Trained(after)
    stopped.steps(0, 3)
    state = stopped.state()
    adopt(state, after)
    with torch.no_grad():
        for old, new in zip(stopped.parameters, resumed.parameters, strict=True):
            new.copy_(old)
    resumed.optimizer.load_state_dict(state)
    resumed.schedule.load_state_dict(stopped.schedule.state_dict())
    group = resumed.optimizer.param_groups[0]
    assert (group["foreach"], group["fused"]) == (after == "foreach", after == "fused")
    for one, two in zip(expected, resumed.steps(3, 6), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("largest", "algorithm", "expected"),
    [(None, "norm", [3.0, -4.0]), (1.0, "norm", [0.6, -0.8]), (1.0, "value", [1.0, -1.0]), (9.0, "norm", [3.0, -4.0])],
)
def test_clipping(largest: float | None, algorithm: str, expected: list[float]) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, -4.0])
    clip_gradients([parameter], largest, algorithm)
    assert parameter.grad.tolist() == pytest.approx(expected, rel=1e-5)
