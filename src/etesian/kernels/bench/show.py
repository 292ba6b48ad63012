"""Comparisons of kernels, laid out for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from etesian.kernels.bench.results import KernelResult, ShapeResult
from etesian.kernels.bench.timing import Ceilings, Timing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

WIDTH, WIDTH_ON_A_DEVICE = 50, 37
"""Letters for a kernel in a table, without the columns that only a GPU has and with them."""

LEGEND = (
    "ms: median of back-to-back calls, launches included. spread: half of what lies between the fastest and the "
    "slowest round. {device}x floor: over the least time that the bytes (or matrix products) of fwd+bwd take. error: "
    "against float64, of the result and of the worst gradient. *: the experiment's own choice.{mark}"
)
"""What the columns are; for a CPU with the two gaps empty."""
_DEVICE = (
    "device: fwd+bwd without launches, which are queued beforehand; compared with the floor. GB: peak memory of "
    "fwd+bwd beside inputs and weights. "
)
_MARK = " h: the host launches more slowly than the device works."


def legend(*, on_device: bool) -> str:
    """Return what the columns of a table are."""
    return LEGEND.format(device=_DEVICE if on_device else "", mark=_MARK if on_device else "")


def shape_table(result: ShapeResult, *, with_missing: bool = True) -> RenderableType:
    """Lay out the kernels of a slot on one shape, the fastest first, and below what was not timed.

    Parameters
    ----------
    result : ShapeResult
        The measurements.
    with_missing : bool
        Whether kernels that are not installed are listed: once a slot is enough.
    """
    from rich.console import Group
    from rich.text import Text

    on_device = any(kernel.both is not None and kernel.both.device is not None for kernel in result.timed)
    inputs = "; ".join(f"{name} {text}" for name, text in result.inputs.items())
    head = Text.assemble(
        (f"{result.slot} on {result.rows:,} {result.shape_name}", "bold"),
        (f"\n{inputs}. Floor fwd+bwd {_ms(result.floor_ms[1])} ms ({result.floor_kind[1]})", "dim"),
    )
    parts: list[RenderableType] = [Text(), head]
    if result.timed:
        parts.append(_timed_table(result, on_device=on_device))
    not_timed = [kernel for kernel in result.not_timed if with_missing or kernel.record is not None]
    if not_timed:
        parts.append(_not_timed_lines(not_timed))
    return Group(*parts)


def _timed_table(result: ShapeResult, *, on_device: bool) -> Table:
    from rich.text import Text

    table = _table("kernel", WIDTH_ON_A_DEVICE if on_device else WIDTH)
    columns = ["fwd ms", "fwd+bwd", "spread", *(["device", "GB"] if on_device else []), "x floor", "error", "grad"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for kernel in result.timed:
        assert kernel.forward is not None
        assert kernel.both is not None
        device = [_ms(kernel.both.device), _gigabytes(kernel.peak_bytes)] if on_device else []
        errors = kernel.errors
        table.add_row(
            _name(kernel, WIDTH_ON_A_DEVICE if on_device else WIDTH),
            _ms(kernel.forward.call.median),
            Text(_ms(kernel.both.call.median) + ("h" if kernel.both.host_bound else ""), style="bold"),
            f"{100 * kernel.both.call.relative:.0f}%",
            *device,
            _ratio(best_estimate(kernel.both), result.floor_ms[1]),
            _error(errors.output if errors else None),
            _error(errors.worst_gradient if errors else None),
        )
    return table


def best_estimate(timing: Timing) -> float:
    """Return what is compared with the floor: the device's own time where it is known."""
    return timing.call.median if timing.device is None else min(timing.device, timing.call.median)


def _not_timed_lines(kernels: list[KernelResult]) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[RenderableType] = [Text("not timed", style="dim")]
    for kernel in kernels:
        why = f"{kernel.reason}; {kernel.mend}" if kernel.mend else kernel.reason
        text = Text.assemble(
            f"{kernel.label}{', compiled' if kernel.compiled else ''}: ", (why, "red" if kernel.wrong else "dim")
        )
        lines.append(Padding(text, (0, 0, 0, 2)))
    return Group(*lines)


def ceilings_line(ceilings: Ceilings) -> str:
    """Say what the device was seen to do at best."""
    text = f"measured here: copy {ceilings.copy_bytes_per_second / 1e9:,.1f} GB/s (bytes read + written)"
    if ceilings.flops_per_second is not None:
        text += f", matrix products {ceilings.flops_per_second / 1e12:,.2f} TFLOP/s in {ceilings.dtype}"
    return text


def _table(first: str, width: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold", width=width)
    return table


def _name(kernel: KernelResult, width: int) -> Text:
    """Return the path and the arguments, in one line if they fit, else the path of the module below."""
    from rich.text import Text

    module, _, name = kernel.target.rpartition(".")
    components = [component for component in kernel.chosen_by if component != "model"]
    facts = [f"{key}={value!r}" for key, value in kernel.arguments.items()]
    facts += ["compiled"] * kernel.compiled + [f"in {component}" for component in components]
    mark, beside = "* " if kernel.chosen_by else "  ", f" {', '.join(facts)}" if facts else ""
    if len(mark + kernel.target + beside) <= width:
        return Text.assemble(mark, (f"{module}.", "dim"), (name, "bold"), beside)
    first, *rest = textwrap.wrap(name + beside, width - 2, subsequent_indent="    ") or [name]
    lines = [(f"\n{line}", "") for line in rest]
    return Text.assemble(mark, (first[: len(name)], "bold"), first[len(name) :], *lines, (f"\n  {module}", "dim"))


def _ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    for bound, digits in ((0.1, 4), (1.0, 3), (100.0, 2)):
        if milliseconds < bound:
            return f"{milliseconds:.{digits}f}"
    return f"{milliseconds:.0f}"


def _gigabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f}"


def _ratio(milliseconds: float, floor: float) -> str:
    ratio = milliseconds / floor if floor else 0.0
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _error(value: float | None) -> str:
    return "?" if value is None else f"{value:.0e}"
