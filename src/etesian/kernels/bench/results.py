"""What a comparison of kernels found, and its JSON form, which ``kernels bench --output`` and the benchmarks write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etesian.errors import UserError
from etesian.files import write_json
from etesian.kernels.bench.accuracy import Errors
from etesian.kernels.bench.timing import Ceilings, Timing
from etesian.kernels.record import KernelRecord
from etesian.outputs import check_writable

FORMAT = 1
"""Version of the JSON."""


@dataclass
class KernelResult:
    """One form of one kernel on one shape.

    Attributes
    ----------
    label, target : str
        The kernel with its arguments, and its path alone.
    arguments : mapping
        Its arguments.
    compiled : bool
        Whether it is the form compiled by torch.
    chosen_by : tuple of str
        ``model`` or components in which the experiment has chosen this form.
    record : KernelRecord or None
        What it resolved to.
    forward, both : Timing or None
        Of the forward pass, and of forward and backward pass; None where it was not timed.
    peak_bytes : int or None
        Memory of a forward and backward pass beside inputs and parameters; None where nobody counts it.
    errors : Errors or None
        Against float64; None where it did not run.
    reason, mend : str
        Why it was not timed, and what helps; empty where it was.
    wrong : bool
        Whether it ran and computed something else.
    """

    label: str
    target: str
    arguments: Mapping[str, Any]
    compiled: bool = False
    chosen_by: tuple[str, ...] = ()
    record: KernelRecord | None = None
    forward: Timing | None = None
    both: Timing | None = None
    peak_bytes: int | None = None
    errors: Errors | None = None
    reason: str = ""
    mend: str = ""
    wrong: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        record = self.record
        return {
            "kernel": self.label,
            "target": self.target,
            "arguments": dict(self.arguments),
            "compiled": self.compiled,
            "chosen_by": list(self.chosen_by),
            "family": record.family if record else None,
            "library": record.library if record else None,
            "version": record.version if record else None,
            "forward_ms": _timing(self.forward),
            "forward_backward_ms": _timing(self.both),
            "peak_bytes": self.peak_bytes,
            "relative_error": None if self.errors is None else asdict(self.errors),
            "wrong": self.wrong,
            "reason": self.reason or None,
            "mend": self.mend or None,
        }


@dataclass
class ShapeResult:
    """Every kernel of a slot on one shape.

    Attributes
    ----------
    slot, shape_name : str
        Which slot, on what.
    rows, calls : int
        Nodes; and how often a step of the model calls the slot on them.
    inputs : dict
        Name to shape and dtype of what a layer is called with, as text.
    input_sets : int
        Sets that took turns.
    floor_ms, floor_kind : tuple
        Least milliseconds forward, and forward and backward; and what sets each: bytes or matrix products.
    kernels : list of KernelResult
        The fastest first; those that were not timed last.
    """

    slot: str
    shape_name: str
    rows: int
    calls: int
    inputs: dict[str, str]
    input_sets: int
    floor_ms: tuple[float, float]
    floor_kind: tuple[str, str]
    kernels: list[KernelResult] = field(default_factory=list)

    @property
    def timed(self) -> list[KernelResult]:
        """Kernels that were timed, the fastest first."""
        found = [kernel for kernel in self.kernels if kernel.both is not None]
        return sorted(found, key=lambda kernel: kernel.both.call.median)  # type: ignore[union-attr]

    @property
    def not_timed(self) -> list[KernelResult]:
        """Kernels that were not timed."""
        return [kernel for kernel in self.kernels if kernel.both is None]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "slot": self.slot,
            "shape": self.shape_name,
            "rows": self.rows,
            "calls_a_step": self.calls,
            "inputs": self.inputs,
            "input_sets": self.input_sets,
            "floor_ms": {
                "forward": self.floor_ms[0], "forward_of": self.floor_kind[0],
                "forward_backward": self.floor_ms[1], "forward_backward_of": self.floor_kind[1],
            },
            "kernels": [kernel.to_json() for kernel in (*self.timed, *self.not_timed)],
        }  # fmt: skip


def _timing(timing: Timing | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    return {
        "median": timing.call.median,
        "min": timing.call.low,
        "max": timing.call.high,
        "host": timing.host,
        "device": timing.device,
        "host_bound": timing.host_bound,
        "calls_a_sample": timing.calls,
    }


def results_json(
    shapes: list[ShapeResult],
    ceilings: Ceilings | None,
    *,
    environment: Mapping[str, Any],
    settings: Mapping[str, Any],
    end_to_end: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a whole comparison in plain values.

    Parameters
    ----------
    shapes : list of ShapeResult
        By slot and shape.
    ceilings : Ceilings or None
        What the device was seen to do at best; None where no slot was measured.
    environment : mapping
        Date, command, card, versions: :func:`etesian.training.environment.environment`.
    settings : mapping
        What was compared and how: channels, precision, device, repeats.
    end_to_end : mapping, optional
        Whole training steps.
    """
    return {
        "format": FORMAT,
        "environment": dict(environment),
        "settings": dict(settings),
        "measured_on_the_device": None if ceilings is None else asdict(ceilings),
        "slots": [shape.to_json() for shape in shapes],
        "end_to_end": None if end_to_end is None else dict(end_to_end),
    }


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write results as JSON; the file appears whole or not at all."""
    write_json(path, dict(content))


def is_results(path: Path) -> bool:
    """Tell whether a file holds results that :func:`write_results` wrote."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"format", "environment", "settings", "slots", "end_to_end"} <= set(content)


def check_results_path(path: Path, *, force: bool) -> None:
    """Check that results may be written there; those of an earlier comparison are replaced.

    Raises
    ------
    UserError
        If they can't be written, or something else is there and is not to be replaced.
    """
    check_writable(path, "--output")
    if path.exists() and not force and not is_results(path):
        what = f"{path} is there already, and holds no results of this command"
        raise UserError(what, where="--output", mend="another name, or --force, which replaces it")
