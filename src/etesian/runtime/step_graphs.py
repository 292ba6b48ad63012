"""Forward, loss and backward of a training step, recorded once for each shape of batch and launched as one piece.

A recorded step reads and writes at fixed addresses: the batch is copied to where it was recorded, gradients are left
or added up where they were, and weights have to stay where they are. What records is an argument, so the bookkeeping
here runs on any device; :class:`etesian.runtime.device.GraphRecorder` records CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor, nn

from etesian.errors import UserError
from etesian.model.features import StaticEdges
from etesian.runtime.checkpointing import forget_random_states

KEY = "training.cuda_graphs"
"""Config key that asks for it."""

WARM_UP = 3
"""Passes before one is recorded: compilers, tuning and libraries do then what they do once."""


class Recorder(Protocol):
    """What records work on a device."""

    device: torch.device

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run work as it will be recorded."""

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Return what launches the work again, and the tensor that then holds its result."""


@dataclass(frozen=True)
class _Step:
    """What was recorded for one shape.

    `kept` are tensors that it reads and that nothing else may hold; `gradients` those that it leaves or adds to.
    """

    batch: Tensor
    loss: Tensor
    launch: Callable[[], None]
    kept: tuple[object, ...]
    gradients: list[Tensor | None]


class StepGraphs:
    """The recorded steps of a model, one for each shape of batch; they share their memory.

    Parameters
    ----------
    module : nn.Module
        What is trained, on the device.
    forward : callable
        Returns the loss of a batch, a number; in it the precision is set.
    backward : callable
        Adds the gradients of such a loss to those that are there.
    recorder : Recorder
        What records.
    accumulates : bool
        Whether gradients are added to those that are there, as an optimiser step of several batches asks. Otherwise
        each run leaves its own, which saves passes over all gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], object],
        recorder: Recorder,
        *,
        accumulates: bool = True,
    ) -> None:
        self.module, self.recorder, self.accumulates = module, recorder, accumulates
        self._checkpointed = forget_random_states(module)
        self._forward, self._backward = forward, backward
        self._steps: dict[tuple[torch.Size, torch.dtype], _Step] = {}
        self._addresses: list[tuple[nn.Parameter, int]] = []
        self._gradients: list[Tensor | None] = []  # that the parameters have now

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the batches for which a step is recorded."""
        return [tuple(shape) for shape, _ in self._steps]

    def run(self, x: Tensor) -> Tensor:
        """Leave the gradients of a batch, or add them to those that are there, and return its loss.

        Parameters
        ----------
        x : Tensor
            The batch; it may change afterwards. The first of its shape is recorded, which takes some passes more.

        Returns
        -------
        Tensor, shape ()
            A copy, without gradient.

        Raises
        ------
        UserError
            If the step can't be recorded.
        RuntimeError
            If weights or gradients are no longer where they were.
        """
        key = (x.shape, x.dtype)
        if key not in self._steps:
            self._steps[key] = self._record(x)
        step = self._steps[key]
        self._check_places()
        if not self.accumulates and step.gradients is not self._gradients:
            self._have(step.gradients)
        step.batch.copy_(x, non_blocking=True)
        step.launch()
        return step.loss.clone()

    def zero_grad(self) -> None:
        """Set gradients that are added up to 0 where they are; before the first step there are none."""
        gradients = [gradient for gradient in self._gradients if gradient is not None]
        if self.accumulates and gradients:
            self._check_places()
            torch._foreach_zero_(gradients)

    def forget(self) -> None:
        """Drop what was recorded, and the gradients: before the module moves to another place."""
        self._steps.clear()
        self._addresses, self._gradients = [], []
        self.module.zero_grad(set_to_none=True)

    def _record(self, x: Tensor) -> _Step:
        batch = x.detach().clone()

        def work() -> Tensor:
            if not self.accumulates:
                self.module.zero_grad(set_to_none=True)
            torch.clear_autocast_cache()  # a weight that was cast before would be recorded as it was then
            with torch.autocast(x.device.type, enabled=False):  # a backward pass is not cast, whatever is around it
                loss = self._forward(batch)
                self._backward(loss)
            torch.clear_autocast_cache()
            return loss.detach()

        with _left_as_it_was(self.module, gradients=self.accumulates):
            before = _random_state(x.device)
            for _ in range(WARM_UP):
                self.recorder.warm_up(work)
            if self._checkpointed and not before.equal(_random_state(x.device)):
                raise _random_and_checkpointed()
            launch, loss = _recorded(self.recorder, work)
        self._addresses = [(p, p.data_ptr()) for p in self.module.parameters()]
        self._gradients = [p.grad for p in self.module.parameters()]
        kept = tuple(layer.kept() for layer in self.module.modules() if isinstance(layer, StaticEdges))
        return _Step(batch, loss, launch, kept, self._gradients)

    def _have(self, gradients: list[Tensor | None]) -> None:
        """Give the parameters the gradients of another recording."""
        self._gradients = gradients
        for (parameter, _), gradient in zip(self._addresses, gradients, strict=True):
            parameter.grad = gradient

    def _check_places(self) -> None:
        for (parameter, address), gradient in zip(self._addresses, self._gradients, strict=True):
            if parameter.grad is not gradient or parameter.data_ptr() != address:
                raise RuntimeError("weights or gradients were moved since the step was recorded: forget() it before")


@contextmanager
def _left_as_it_was(module: nn.Module, *, gradients: bool) -> Iterator[None]:
    """Set buffers, random states and, if asked, gradients back to what they were; a gradient that is new becomes 0."""
    parameters, buffers = list(module.parameters()) if gradients else [], list(module.buffers())
    before = [None if p.grad is None else p.grad.clone() for p in parameters]
    values = [(buffer, buffer._version, buffer.clone()) for buffer in buffers]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        yield
    with torch.no_grad():
        for parameter, gradient in zip(parameters, before, strict=True):
            if gradient is not None:
                parameter.grad.copy_(gradient)  # type: ignore[union-attr]
            elif parameter.grad is not None:
                parameter.grad.zero_()
        for buffer, version, value in values:
            if buffer._version != version:
                buffer.copy_(value)


def _random_state(device: torch.device) -> Tensor:
    state: Tensor = (torch if device.type == "cpu" else torch.get_device_module(device)).get_rng_state()
    return state


def _random_and_checkpointed() -> UserError:
    return UserError(
        "a layer draws random numbers in a block that recomputes its activations: the state to draw them again from "
        "can't be read in a step that is recorded as a CUDA graph",
        where=KEY,
        mend=f"{KEY}=false, or gradient_checkpointing: none",
    )


def _recorded(recorder: Recorder, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Record work, or tell where and why that failed."""
    failed: list[Exception] = []

    def noting() -> Tensor:
        try:
            return work()
        except Exception as cause:
            failed.append(cause)  # the end of a recording that failed complains a second time
            raise

    try:
        return recorder.record(noting)
    except Exception as cause:
        raise _told(failed[0] if failed else cause) from cause


def _told(cause: Exception) -> Exception:
    """Return the error of a step that can't be recorded; want of memory, and a user's mistake, stay what they are."""
    text = " ".join(str(cause).split())
    if isinstance(cause, UserError) or "out of memory" in text:
        return cause
    fault = f"{_place(cause.__traceback__)}{type(cause).__name__}: {text[:300]}"
    return UserError(
        f"the step can't be recorded as a CUDA graph: {fault}",
        where=KEY,
        mend=f"{KEY}=false, or a kernel that does not wait for the GPU in the middle of its work",
    )


def _place(traceback: TracebackType | None) -> str:
    """Return where a layer failed: its slot, if one made it, and the last line of code."""
    layer, place = "", ""
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            made_by = getattr(owner, "made_by", None)
            layer = f"slot {made_by[1]}, " if made_by else ""
            layer += f"{type(owner).__name__}"
        place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"{layer} at {place}: ".lstrip() if place else ""
