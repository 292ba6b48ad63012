"""Times the parts of a training step as they run, without waiting for the device.

Lightning tells a profiler when it fetches a batch, copies it, calls the step, the backward pass and the optimiser;
hooks tell when encoder, processor, decoder and loss begin and end. Each is a mark in the device's queue, and the time
from a mark to the next belongs to one part, so the parts add up to the step. On a GPU the marks are events that are
read once the device has long passed them: a part has the time that the device spent in it, waiting included. So the
part *data wait* is the time that the device, not the host, had nothing to do for want of data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytorch_lightning.profilers import Profiler
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.hooks import RemovableHandle

from etesian.model.base import Model
from etesian.runtime.checkpointing import COMPONENTS
from etesian.runtime.compile import Compilation
from etesian.runtime.device import DeviceClock, Mark, synchronize

DATA, COPY, LOSS, BACKWARD = "data_wait", "copy_to_device", "loss", "backward"
MODEL, GRAPH, OPTIMISER, REST = "model", "forward_and_backward", "optimiser", "rest"
LABELS = {
    DATA: "data wait", COPY: "copy to device", "encoder": "encoder", "processor": "processor", "decoder": "decoder",
    MODEL: "model (compiled as one)", LOSS: "loss", BACKWARD: "backward", GRAPH: "forward+backward (one graph)",
    OPTIMISER: "optimiser", REST: "rest",
}  # fmt: skip
"""Parts in the order of a step, as they are shown."""
OUTSIDE = "outside"
"""What happens during a step and is none of it: a checkpoint by the clock."""
KEPT = 10_000
"""Latest steps that are kept."""

_ACTIONS = {
    "train_dataloader_next": DATA, "batch_to_device": COPY, "training_step": REST, "backward": BACKWARD,
    "optimizer_step": OPTIMISER, "optimizer_zero_grad": OPTIMISER, "save_checkpoint": OUTSIDE,
}  # fmt: skip
"""What Lightning calls them, after the last dot."""
_FETCH, _ENDS = "train_dataloader_next", ("on_validation_model_zero_grad", "on_validation_start")


@dataclass(frozen=True)
class StepTimes:
    """One optimiser step.

    Attributes
    ----------
    number : int
        Steps of this process before it.
    batches : int
        Batches whose gradients it added up.
    seconds, host_seconds : dict of str to float
        Of each part, on the device and on the host.
    host_bound : bool
        Whether the device was waiting for the host's next call when the optimiser had been called.
    """

    number: int
    batches: int
    seconds: dict[str, float]
    host_seconds: dict[str, float]
    host_bound: bool


class StepClock(Profiler):
    """Times the parts of each optimiser step; validation and checkpoints are left out.

    Parameters
    ----------
    clock : DeviceClock
        Of this process's device.
    untimed : int
        First optimiser steps that are left out.
    one_graph : bool
        Whether forward and backward pass are replayed as one graph, which nothing can look into.

    Attributes
    ----------
    steps : deque of StepTimes
        The latest steps that the device has done.
    after_step : callable
        Called with the number of steps done, after each of them, outside of what is timed.
    labelled : bool
        Whether the parts show in a trace.
    """

    def __init__(self, clock: DeviceClock, untimed: int, *, one_graph: bool = False) -> None:
        super().__init__()
        self.clock, self.untimed = clock, untimed
        self.steps: deque[StepTimes] = deque(maxlen=KEPT)
        self.after_step: Callable[[int], None] = lambda _: None
        self.labelled = False
        self._parts = {**_ACTIONS, **({"training_step": GRAPH, "backward": GRAPH} if one_graph else {})}
        self._one_graph = one_graph
        self._actions: dict[str, str] = {}  # Lightning's names to what follows their last dot
        self._open: list[str] | None = None  # parts entered in this batch and not left, REST first; None between
        self._labels: list[record_function] = []
        self._marks: list[tuple[str, Mark]] = []  # of this step: a part and when it begins; OUTSIDE ends a batch
        self._backward_end: Mark | None = None
        self._batches, self._done, self._stepped, self._host_bound = 0, 0, False, False
        self._waiting: deque[tuple[int, int, list[tuple[str, Mark]], bool]] = deque()
        self._handles: list[RemovableHandle] = []

    def watch(self, model: nn.Module, loss: nn.Module, compilation: Compilation | None) -> None:
        """Hook the modules whose forward passes are parts.

        Inside a model that is compiled as one, and inside a graph of the whole step, no hook would be called when it
        runs: those are one part.

        Parameters
        ----------
        model : Module
            With encoder, processor and decoder.
        loss : Module
            The loss.
        compilation : Compilation, optional
            What of the model is compiled.
        """
        if self._one_graph:
            return
        entries = compilation.entries if compilation is not None else ()
        whole = isinstance(model, Model) and any("" in compiled.names for compiled in entries)
        parts = {MODEL: model} if whole else {name: model.get_submodule(name) for name in COMPONENTS}
        for part, module in {**parts, LOSS: loss}.items():
            self._handles.append(module.register_forward_pre_hook(self._entering(part)))
            self._handles.append(module.register_forward_hook(self._leaving(part)))

    def unwatch(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def start(self, action_name: str) -> None:
        """Begin what Lightning does next."""
        action = self._action(action_name)
        if action == _FETCH:
            self._end_batch()
            self._open = [REST]
        elif action in _ENDS:
            self._end_batch()
        if (part := self._parts.get(action)) is not None and self._open is not None:
            self._enter(part)

    def stop(self, action_name: str) -> None:
        """End what Lightning did."""
        action = self._action(action_name)
        if action == "run_training_epoch":
            self._end_batch()
        part = self._parts.get(action)
        if part is None or self._open is None:
            return
        if action == "optimizer_step":
            self._stepped = True
            self._host_bound = self._backward_end is not None and self.clock.has_passed(self._backward_end)
        self._leave(part)

    def finish(self) -> None:
        """Wait for the device and read what is left."""
        self._end_batch()
        synchronize(self.clock.device)
        self._read()

    def _action(self, name: str) -> str:
        action = self._actions.get(name)
        if action is None:
            action = self._actions[name] = name.rpartition(".")[2]
        return action

    def _entering(self, part: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, inputs: Any) -> None:
            if self._open is not None and self._open[-1] == REST:  # not in a backward pass that computes it again
                self._enter(part)

        return enter

    def _leaving(self, part: str) -> Callable[[nn.Module, Any, Any], None]:
        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            if self._open is not None and self._open[-1] == part:
                self._leave(part)

        return leave

    def _enter(self, part: str) -> None:
        assert self._open is not None
        self._open.append(part)
        self._marks.append((part, self.clock.mark()))
        if self.labelled:
            self._labels.append(record_function("forward" if part == REST else LABELS.get(part, part)))
            self._labels[-1].__enter__()

    def _leave(self, part: str) -> None:
        assert self._open is not None
        self._open.pop()
        mark = self.clock.mark()
        self._marks.append((self._open[-1], mark))
        if part == BACKWARD:
            self._backward_end = mark
        if self._labels:
            self._labels.pop().__exit__(None, None, None)

    def _end_batch(self) -> None:
        """End a batch where one is open, and the step that it ends."""
        if self._open is None:
            return
        self._open = None
        self._marks.append((OUTSIDE, self.clock.mark()))
        self._batches += 1
        if self._stepped:
            if self._done >= self.untimed:
                self._waiting.append((self._done, self._batches, self._marks, self._host_bound))
            self._done += 1
            self._batches, self._stepped, self._marks = 0, False, []
            self._read()
            self.after_step(self._done)

    def _read(self) -> None:
        """Turn the marks of steps that the device has done into times."""
        while self._waiting and self.clock.has_passed(self._waiting[0][2][-1][1]):
            number, batches, marks, host_bound = self._waiting.popleft()
            device, host = dict.fromkeys(LABELS, 0.0), dict.fromkeys(LABELS, 0.0)
            for (part, begin), (_, end) in pairwise(marks):
                if part != OUTSIDE:
                    device[part] += self.clock.between(begin, end)
                    host[part] += end.host - begin.host
            used = [part for part in LABELS if part in {part for part, _ in marks}]
            self.steps.append(
                StepTimes(number, batches, {p: device[p] for p in used}, {p: host[p] for p in used}, host_bound)
            )
