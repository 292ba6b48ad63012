"""The bookkeeping of recorded steps: static batches and gradients, shapes, what a recording must not change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest
import torch
from fake_recorder import FakeRecorder
from small_model import make_model, make_settings
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.runtime.checkpointing import apply_activation_checkpointing, apply_selective_checkpointing
from etesian.runtime.step_graphs import WARM_UP, StepGraphs


class Counting(nn.Module):
    """A layer with a buffer that its forward changes, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.dropout(self.linear(x), 0.5)


def loss_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x).square().mean()


def graphs_of(module: nn.Module, recorder: FakeRecorder | None = None) -> StepGraphs:
    return StepGraphs(module, loss_of(module), lambda loss: loss.backward(), recorder or FakeRecorder())


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def eager(module: nn.Module, batches: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the losses of batches, and the gradients of all together."""
    module.zero_grad(set_to_none=True)
    losses = [loss_of(module)(x) for x in batches]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses], gradients(module)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def batches(count: int, size: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, generator=generator) for _ in range(count)]


def assert_equal(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_gradients_add_up_over_batches_and_begin_anew_after_zero_grad():
    module, recorder = linear(), FakeRecorder()
    graphs = graphs_of(module, recorder)
    for seed in range(3):
        group = batches(2, seed=seed)
        expected_losses, expected = eager(linear(), group)
        graphs.zero_grad()
        assert_equal([graphs.run(x) for x in group], expected_losses)
        assert_equal(gradients(module), expected)
    assert (recorder.recordings, recorder.warm_ups, recorder.launches) == (1, WARM_UP, 6)


def test_the_step_follows_the_weights():
    module, other = linear(), linear()
    graphs, optimizer = graphs_of(module), torch.optim.SGD(module.parameters(), lr=0.1)
    expected = torch.optim.SGD(other.parameters(), lr=0.1)
    for x in batches(4):
        graphs.zero_grad()
        loss = graphs.run(x)
        optimizer.step()
        assert_equal([loss], eager(other, [x])[0])
        expected.step()
    assert torch.equal(module.weight, other.weight)


def test_a_batch_and_a_loss_are_copies():
    module, (x, y) = linear(), batches(2)
    graphs = graphs_of(module)
    first = graphs.run(x)
    kept = first.clone()
    x.fill_(float("nan"))
    second = graphs.run(y)
    assert torch.equal(first, kept)
    assert torch.equal(second, eager(linear(), [y])[0][0])
    assert not first.requires_grad


def test_each_shape_is_recorded_once_and_gradients_are_kept_meanwhile():
    module, recorder = linear(), FakeRecorder()
    graphs = graphs_of(module, recorder)
    group = [*batches(1), *batches(1, size=2), *batches(1, seed=5)]
    losses, expected = eager(linear(), group)
    assert_equal([graphs.run(x) for x in group], losses)
    assert_equal(gradients(module), expected)
    assert graphs.shapes == [(4, 3), (2, 3)]
    assert recorder.recordings == 2
    graphs.run(group[0].double().float())
    assert recorder.recordings == 2


def test_recording_changes_neither_buffers_nor_random_numbers():
    (x,) = batches(1)
    torch.manual_seed(1)
    module = Counting()
    other = Counting()
    other.load_state_dict(module.state_dict())
    torch.manual_seed(2)
    losses, expected = eager(other, [x])
    torch.manual_seed(2)
    assert_equal([graphs_of(module).run(x)], losses)
    assert_equal(gradients(module), expected)
    assert module.calls == 1


def test_a_parameter_that_is_not_read_has_no_gradient():
    module = Counting()
    graphs = graphs_of(module)
    graphs.run(batches(1)[0])
    graphs.zero_grad()
    assert module.unused.grad is None
    assert module.linear.weight.grad is not None


def test_gradients_stay_where_they_are():
    module = linear()
    graphs = graphs_of(module)
    graphs.zero_grad()  # nothing is there yet
    graphs.run(batches(1)[0])
    place = module.weight.grad
    graphs.zero_grad()
    assert module.weight.grad is place
    assert not place.any()


def test_each_run_leaves_its_own_gradients_where_a_step_has_one_batch():
    module = linear()
    recorder = FakeRecorder(module=module)
    graphs = StepGraphs(module, loss_of(module), lambda loss: loss.backward(), recorder, accumulates=False)
    places = {}
    for x in [*batches(2), *batches(1, size=2), *batches(2, seed=5), *batches(1, size=2, seed=6)]:
        graphs.zero_grad()
        losses, expected = eager(linear(), [x])
        assert_equal([graphs.run(x)], losses)
        assert_equal(gradients(module), expected)
        assert module.weight.grad is places.setdefault(len(x), module.weight.grad)
        graphs.zero_grad()  # sets nothing to 0: the next run overwrites it
        assert_equal(gradients(module), expected)
    assert len(places) == recorder.recordings == 2
    module.weight.grad = None
    with pytest.raises(RuntimeError, match="moved"):
        graphs.run(x)


@pytest.mark.parametrize("lost", ["gradient", "weight"])
def test_what_was_moved_is_noticed(lost: str):
    module, (x,) = linear(), batches(1)
    graphs = graphs_of(module)
    graphs.run(x)
    if lost == "gradient":
        module.zero_grad(set_to_none=True)
    else:
        module.weight.data = module.weight.data.clone()
    with pytest.raises(RuntimeError, match="moved"):
        graphs.run(x)
    with pytest.raises(RuntimeError, match="moved"):
        graphs.zero_grad()
    graphs.forget()
    assert torch.equal(graphs.run(x), eager(linear(), [x])[0][0])


def test_a_loss_that_is_cast_is_cast_as_without():
    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x).float().square().mean()

    (x,) = batches(1)
    module = linear()
    cast(x).backward()
    expected = gradients(module)
    module = linear()
    graphs = StepGraphs(module, cast, lambda loss: loss.backward(), FakeRecorder())
    with torch.autocast("cpu", torch.bfloat16):  # as around a training step of Lightning's
        graphs.run(x)
        with torch.no_grad():
            module.weight.mul_(2)
        loss = graphs.run(x)
    assert torch.equal(loss, cast(x).detach())
    module = linear()
    graphs = StepGraphs(module, cast, lambda loss: loss.backward(), FakeRecorder())
    graphs.run(x)
    assert_equal(gradients(module), expected)


def test_the_edges_that_a_recorded_step_reads_are_kept():
    model = make_model(make_settings())
    graphs = graphs_of(model)
    x = torch.randn(2, 2, 1, 14, 3)
    graphs.run(x)
    (step,) = graphs._steps.values()
    edges = model.encoder.edges.static.edges(2)
    assert any(edges is own for kept in step.kept for own in kept)


class Refusing(FakeRecorder):
    """Refuses one operation of the work, then complains of the recording that this broke off."""

    recording = False

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.recording = True
        try:
            return super().record(work)
        finally:
            raise RuntimeError("capture ended in an invalid state")


def refused(cause: Exception) -> StepGraphs:
    module, recorder = linear(), Refusing()

    def forward(x: Tensor) -> Tensor:
        if recorder.recording:
            try:
                raise KeyError("something else")
            except KeyError:
                raise cause from None
        return module(x).mean()

    return StepGraphs(module, forward, lambda loss: loss.backward(), recorder)


def test_a_step_that_cannot_be_recorded_names_the_key():
    graphs = refused(RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(UserError, match="RuntimeError: operation not permitted when stream") as error:
        graphs.run(batches(1)[0])
    (problem,) = error.value.problems
    assert problem.where == "training.cuda_graphs"
    assert "training.cuda_graphs=false" in problem.mend


def test_want_of_memory_is_no_fault_of_the_recording():
    graphs = refused(RuntimeError("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        graphs.run(batches(1)[0])


class Waiting(nn.Linear):
    """A layer that looks at its result."""

    made_by = ("model", "Linear")
    recording = False

    def forward(self, x: Tensor) -> Tensor:
        if self.recording:
            raise RuntimeError("operation not permitted")
        return super().forward(x)


def test_the_layer_that_cannot_be_recorded_is_named():
    module = Waiting(3, 2)

    class Recording(FakeRecorder):
        def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            module.recording = True
            return super().record(work)

    with pytest.raises(UserError, match=r"slot Linear, Waiting at .*test_step_graphs.py:\d+: RuntimeError: operation"):
        graphs_of(module, Recording()).run(batches(1)[0])


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_random_numbers_in_a_block_that_is_computed_again_are_refused(policy: str, monkeypatch: pytest.MonkeyPatch):
    block = {"num_heads": 2, "gradient_checkpointing": policy}
    settings = make_settings(encoder=block)
    model, x = make_model(settings), torch.randn(1, 2, 1, 14, 3)
    apply_selective_checkpointing(model, settings)
    apply_activation_checkpointing(model, settings)
    graphs = graphs_of(model)
    with monkeypatch.context() as context:  # a checkpoint reads no random state, which a recording forbids
        context.setattr("etesian.runtime.step_graphs._random_state", lambda device: torch.zeros(1))
        context.setattr("torch.get_rng_state", None)
        context.setattr(
            "etesian.runtime.step_graphs._left_as_it_was", lambda module, gradients: contextlib.nullcontext()
        )
        graphs.run(x)
    model.encoder.block.mlp.register_forward_hook(lambda module, args, y: nn.functional.dropout(y, 0.5))
    with pytest.raises(UserError, match="draws random numbers"):
        graphs_of(model).run(x)
