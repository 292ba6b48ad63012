"""A trace of a few training steps: every operator, by module, with its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.hooks import RemovableHandle

from etesian.files import atomic_path, write_text
from etesian.runtime.compile import Compilation
from etesian.training.step_clock import LABELS, StepClock

TRACE, OPERATORS, MEMORY = "trace.json.gz", "operators.txt", "memory.pickle"
_ROWS = 60  # of the table of operators


class Trace:
    """Traces the steps from `first` on, and writes ``trace.json.gz``, ``operators.txt`` and, of a GPU, its memory.

    The step before is not kept: the tracer starts in it.

    Parameters
    ----------
    model : Module
        Its modules appear by their names.
    clock : StepClock
        Tells when a step is done.
    first, steps : int
        Steps that are done before, and that are traced.
    folder : Path
        Where it is written.
    compilation : Compilation, optional
        What of the model is compiled: nothing shows inside.
    """

    def __init__(
        self, model: nn.Module, clock: StepClock, first: int, steps: int, folder: Path, compilation: Compilation | None
    ) -> None:
        self.model, self.clock, self.folder = model, clock, folder
        self.first, self.last = first, first + 1 + steps
        self.compilation = compilation
        activities = [ProfilerActivity.CPU]
        if clock.clock.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.profile = profile(
            activities=activities, schedule=schedule(wait=0, warmup=1, active=steps, repeat=1), profile_memory=True,
            record_shapes=True, on_trace_ready=self._write,
        )  # fmt: skip
        self._handles: list[RemovableHandle] = []
        self._running = False

    def after_step(self, done: int) -> None:
        """Start, go on or stop after so many steps."""
        if done == self.first:
            self.start()
        elif self._running:
            if done == self.last - 1:
                self.clock.clock.record_allocations()
            self.profile.step()  # writes after the last
            if done == self.last:
                self.stop()

    def start(self) -> None:
        """Start the tracer and label the modules."""
        inside = compiled_inside(self.model, self.compilation)
        for name, module in self.model.named_modules():
            if name and name not in LABELS and name not in inside:
                self._handles.extend(_label(module, name))
        self.clock.labelled = True
        self.profile.start()
        self._running = True

    def stop(self) -> None:
        """Stop the tracer where it runs; what was not traced to the end is not written."""
        if self._running:
            self._running = False
            self.profile.stop()
        self.clock.labelled = False
        while self._handles:
            self._handles.pop().remove()

    def _write(self, traced: profile) -> None:
        on_device = self.clock.clock.device.type == "cuda"
        with atomic_path(self.folder / TRACE) as path:
            # torch compresses where the name ends in .gz
            written = path.with_name(f"{path.name}.json.gz")
            try:
                traced.export_chrome_trace(str(written))
                written.replace(path)
            finally:
                written.unlink(missing_ok=True)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        table = traced.key_averages().table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)
        write_text(self.folder / OPERATORS, table + "\n")
        if on_device:
            with atomic_path(self.folder / MEMORY) as path:
                self.clock.clock.write_allocations(path)


def compiled_inside(model: nn.Module, compilation: Compilation | None) -> set[str]:
    """Return the names of the modules that lie within a compiled one: a hook there would be compiled with it."""
    names = [name for compiled in (compilation.entries if compilation else ()) for name in compiled.names]
    return {
        inner for inner, _ in model.named_modules() for name in names
        if inner != name and (name == "" or inner.startswith(f"{name}."))
    }  # fmt: skip


def _label(module: nn.Module, name: str) -> list[RemovableHandle]:
    """Let a module's forward pass show under its name in a trace."""
    open_labels: list[record_function] = []

    def enter(module: nn.Module, inputs: Any) -> None:
        open_labels.append(record_function(name))
        open_labels[-1].__enter__()

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        if open_labels:
            open_labels.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
