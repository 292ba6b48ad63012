"""What ``training_step.py`` found: plain values, each variant beside the others, and the table of a part."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from etesian.kernels.bench.timing import Ceilings
from etesian.training.environment import environment
from etesian.training.step_times import StepsResult
from peer_attention import DISTRIBUTION

FORMAT = 1
"""Version of the JSON."""

LEGEND = (
    "ms: median of the rounds; spread: half of what lies between fastest and slowest; TFLOP/s: matrix products of the "
    "model, nothing that is computed twice; ceiling: their share of the rate of a large matrix product here; GB: peak, "
    "with weights, optimiser and batch; first s: first step, with compilation; speed: the time of the fastest peer "
    "over this time."
)


def entry(result: StepsResult, flops: int, ceilings: Ceilings, *, own: bool) -> dict[str, Any]:
    """Return one variant in plain values.

    Parameters
    ----------
    result : StepsResult
        What was timed.
    flops : int
        Operations of a step.
    ceilings : Ceilings
        What the device was seen to do at best.
    own : bool
        Whether it is this package's, or the peer's.
    """
    step = result.step
    rate = None if step is None else flops / (1e-3 * step.median)
    best = ceilings.flops_per_second
    return {
        "name": result.name,
        "own": own,
        "step_ms": None if step is None else {"median": step.median, "min": step.low, "max": step.high},
        "samples_per_second": result.samples_per_second,
        "flops_per_second": rate,
        "share_of_ceiling": rate / best if rate and best else None,
        "peak_bytes": result.peak_bytes,
        "first_step_seconds": result.first_step_seconds,
        "graphs": result.graphs,
        "first_loss": result.first_loss,
        "first_gradient": result.first_gradient,
        "reason": result.reason or None,
        "mend": result.mend or None,
    }


def compare(variants: list[dict[str, Any]], tolerances: tuple[float, float]) -> None:
    """Add to each variant how it stands to the fastest peer, and whether it computes the same as the first that ran.

    Parameters
    ----------
    variants : list of dict
        Of one part; changed in place.
    tolerances : tuple of float
        Largest relative difference of the first losses, and of the norms of their gradients.
    """
    peers = [variant["step_ms"]["median"] for variant in variants if not variant["own"] and variant["step_ms"]]
    ran = [variant for variant in variants if variant["first_loss"] is not None]
    for variant in variants:
        step = variant["step_ms"]
        variant["speed"] = min(peers) / step["median"] if step and peers else None
        variant["difference"], variant["agrees"] = None, None
        if variant in ran:
            found = {name: _difference(variant[f"first_{name}"], ran[0][f"first_{name}"])
                     for name in ("loss", "gradient")}  # fmt: skip
            variant["difference"] = found
            variant["agrees"] = all(
                value is None or value <= most for value, most in zip(found.values(), tolerances, strict=True)
            )


def _difference(one: float | None, other: float | None) -> float | None:
    """Return how far one number is from another, relative to it; a NaN is infinitely far."""
    if one is None or other is None:
        return None
    return abs(one - other) / abs(other) if one == one and other else float("inf")


def environment_with_peer() -> dict[str, Any]:
    """Return date, card and versions, with that of the peer; None where it is not installed."""
    found = environment([sys.executable, *sys.argv])
    try:
        found["versions"][DISTRIBUTION] = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found["versions"][DISTRIBUTION] = None
    return found


def show(name: str, part: dict[str, Any], console: Console) -> None:
    """Print one part: what was computed, the table, what is missing, what does not agree."""
    about, settings = part["work"], part["settings"]
    nodes = f"{about['hidden_nodes']:,} hidden nodes"
    if "data_nodes" in about:
        nodes = f"{about['data_nodes']:,} data nodes, {nodes}, {about['inputs']} to {about['outputs']} channels"
    console.print(
        f"\n[bold]{name}[/bold]: {nodes}, {about['layers']} layers of {about['channels']:,} channels, "
        f"{settings['precision']}, {about['flops'] / 1e12:.4g} TFLOP a step; {part['memory']}"
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("variant", min_width=24)
    heads = ["ms", "spread", "samples/s", "TFLOP/s", "ceiling", "GB", "first s", "speed", "loss 1"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    timed = sorted((v for v in part["variants"] if v["step_ms"]), key=lambda v: v["step_ms"]["median"])
    for variant in timed:
        table.add_row(*_cells(variant), style="bold" if variant["own"] else None)
    console.print(table)
    for variant in part["variants"]:
        if variant["reason"]:
            mend = f"; {variant['mend']}" if variant["mend"] else ""
            console.print(f"  {variant['name']} not timed: {variant['reason']}{mend}", markup=False, style="red")
        if variant["agrees"] is False:
            far = ", ".join(f"{key} {value:.1e}" for key, value in variant["difference"].items() if value is not None)
            said = f"  {variant['name']} computes something else than the first variant: {far} away"
            console.print(said, markup=False, style="red")


def _cells(variant: dict[str, Any]) -> list[str | Text]:
    step = variant["step_ms"]
    return [
        variant["name"],
        f"{step['median']:.4g}",
        f"{50 * (step['max'] - step['min']) / step['median']:.0f}%",
        f"{variant['samples_per_second']:.4g}",
        f"{variant['flops_per_second'] / 1e12:.4g}",
        f"{100 * variant['share_of_ceiling']:.1f}%",
        "" if variant["peak_bytes"] is None else f"{variant['peak_bytes'] / 1e9:.1f}",
        f"{variant['first_step_seconds']:.1f}",
        "" if variant["speed"] is None else f"{variant['speed']:.2f}",
        f"{variant['first_loss']:.5g}",
    ]
