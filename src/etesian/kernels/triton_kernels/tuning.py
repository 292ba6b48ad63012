"""How the work of a kernel is cut into programs: a choice by table, or by measuring a few on the card, kept on disk.

All choices compute the same function, but add up in another order, so their results differ by roundings. The table
reads the shapes alone: the same shapes give the same bits on every run. What was measured may differ from run to run
until it is kept; under ``torch.use_deterministic_algorithms(True)`` the table is used.

Nothing here needs Triton until something is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from etesian.files import write_json
from etesian.graph.tiles import FEW_EDGES

KERNELS = ("scores", "outputs", "slopes", "query_gradient", "source_gradients")
"""The kernels that have a choice."""


@dataclass(frozen=True)
class Cut:
    """How the work of a kernel is cut into programs.

    Attributes
    ----------
    heads_first : bool
        Whether the programs of all heads of some nodes run side by side, or those of one head.
    warps : int
        Warps of a program.
    stages : int
        Steps of a loop whose loads are under way at a time.
    """

    heads_first: bool = True
    warps: int = 1
    stages: int = 2

    def options(self) -> dict[str, Any]:
        """Return what a kernel is compiled for."""
        return {"HEADS_FIRST": self.heads_first, "num_warps": self.warps, "num_stages": self.stages}


Run = Callable[[Cut], None]


@dataclass(frozen=True)
class Work:
    """What a choice depends on.

    Attributes
    ----------
    kernel : str
        One of `KERNELS`.
    device : torch.device
        Where it runs.
    dtype : torch.dtype
        Of the rows.
    nodes, others, edges : int
        Nodes whose edges are walked over, nodes on their other ends, edges.
    heads, channels, features : int
        H, C, D.
    channel_block : int
        Channels of a cut.
    """

    kernel: str
    device: torch.device
    dtype: torch.dtype
    nodes: int
    others: int
    edges: int
    heads: int
    channels: int
    features: int
    channel_block: int

    @property
    def key(self) -> str:
        """The work in words, but for the card."""
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"{self.nodes}x{self.others}x{self.edges} H{self.heads} C{self.channels} D{self.features}"
        return f"{self.kernel} {dtype} {sizes}"


_folder: Path | None = None
_known: dict[str, dict[str, Cut]] = {}
_fixed: Cut | None = None


def keep_in(folder: Path | None) -> None:
    """Keep what is measured in a folder, and read what was measured there before; None keeps it in memory only."""
    global _folder
    _folder = folder
    _known.clear()


@contextmanager
def fixed(cut: Cut) -> Iterator[None]:
    """Use one cut for every kernel inside the block: how a test goes through all of them."""
    global _fixed
    before, _fixed = _fixed, cut
    try:
        yield
    finally:
        _fixed = before


def by_table(work: Work) -> Cut:
    """Return the cut for some work; it depends on shapes and dtype alone."""
    nodes = work.others if work.kernel == "source_gradients" else work.nodes
    one_tile = work.edges < FEW_EDGES * nodes  # a block has about one tile: there is nothing to read ahead
    return Cut(warps=_warps(work), stages=1 if one_tile else 2)


def candidates(work: Work) -> list[Cut]:
    """Return the cuts that are measured, that of the table first."""
    first = by_table(work)
    cuts = [
        Cut(heads_first, warps, stages)
        for heads_first in (True, False)
        for warps in (first.warps, 2 * first.warps)
        for stages in (1, 2, 3)
    ]
    return list(dict.fromkeys([first, *cuts]))


def choose(work: Work, run: Callable[[Cut], None], *, measure: bool) -> Cut:
    """Return the cut to use.

    Parameters
    ----------
    work : Work
        What it is for.
    run : callable
        Runs the kernel with a cut; it may be called again and again.
    measure : bool
        Whether work that was not met before is measured: a second or so, and not while a CUDA graph is captured.
    """
    if _fixed is not None:
        return _fixed
    if not measure or work.device.type == "cpu" or torch.are_deterministic_algorithms_enabled():
        return by_table(work)
    card = _card(work.device)
    kept = _read(card)
    if work.key not in kept:
        kept[work.key] = _fastest(work, run)
        _write(card, kept)
    return kept[work.key]


def _warps(work: Work) -> int:
    """Return the warps for a block of 32 rows: one for 64 channels."""
    return max(1, min(8, work.channel_block // 64))


def _fastest(work: Work, run: Callable[[Cut], None]) -> Cut:
    from triton.testing import do_bench

    times = {cut: do_bench(lambda cut=cut: run(cut), warmup=5, rep=20, return_mode="median")
             for cut in candidates(work)}  # fmt: skip
    return min(times, key=lambda cut: times[cut])


def _card(device: torch.device) -> str:
    """Return the card and the version of Triton, as a file may be named."""
    import triton

    name = torch.get_device_module(device).get_device_name(device)
    return "".join(letter if letter.isalnum() else "-" for letter in f"{name} triton {triton.__version__}")


def _file(card: str) -> Path | None:
    return None if _folder is None else _folder / "cuts" / f"{card}.json"


def _read(card: str) -> dict[str, Cut]:
    """Return what is known for a card; a file that can't be read is made anew."""
    if card not in _known:
        file = _file(card)
        try:
            kept = json.loads(file.read_text()) if file is not None and file.is_file() else {}
            _known[card] = {key: Cut(**cut) for key, cut in kept.items()}
        except (ValueError, TypeError, AttributeError):
            _known[card] = {}
    return _known[card]


def _write(card: str, kept: dict[str, Cut]) -> None:
    if (file := _file(card)) is not None:
        write_json(file, {key: asdict(cut) for key, cut in sorted(kept.items())})
