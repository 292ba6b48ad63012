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

import torch

from etesian.files import write_json

KERNELS = ("scores", "outputs", "score_gradients", "attribute_sums", "query_gradient", "source_gradients")
"""The kernels that walk over edges; each has a choice of its own."""

CACHE_BYTES = 32 * 2**20
"""Rows that are fetched again and again should fit into this: about what the last cache of a card holds."""


@dataclass(frozen=True)
class Tile:
    """How a kernel that walks over edges is cut into programs.

    Attributes
    ----------
    rows : int
        Rows of a program, 16 or more.
    lanes : int
        Rows that share the edges of one node; a power of two up to `rows`.
    heads_first : bool
        Whether the programs of all heads of some nodes run side by side, or those of one head.
    warps : int
        Warps of a program.
    """

    rows: int
    lanes: int
    heads_first: bool
    warps: int


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
        Channels of a tile.
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
_known: dict[str, dict[str, Tile]] = {}
_fixed: Tile | None = None


def keep_in(folder: Path | None) -> None:
    """Keep what is measured in a folder, and read what was measured there before; None keeps it in memory only."""
    global _folder
    _folder = folder
    _known.clear()


@contextmanager
def fixed(tile: Tile) -> Iterator[None]:
    """Use one tile for every kernel inside the block: how a test goes through all of them."""
    global _fixed
    before, _fixed = _fixed, tile
    try:
        yield
    finally:
        _fixed = before


def by_table(work: Work) -> Tile:
    """Return the tile for some work; it depends on shapes and dtype alone.

    About six edges a lane: fewer lanes would leave nodes of many edges behind, more would add up more than they read.
    """
    degree = work.edges / max(1, work.nodes)
    lanes = next((lanes for lanes in (1, 2, 4, 8) if degree <= 6 * lanes), 16)
    tables = 2 if work.kernel == "source_gradients" else 1  # queries and gradients
    a_head = work.others * work.channels * work.dtype.itemsize * tables
    stays = a_head <= CACHE_BYTES < a_head * work.heads
    return Tile(16, lanes, not stays, _warps(16, work))


def candidates(work: Work) -> list[Tile]:
    """Return the tiles that are measured, at most 18, that of the table first."""
    first = by_table(work)
    lanes = [lanes for lanes in (first.lanes, first.lanes // 2, first.lanes * 2) if 1 <= lanes <= 16]
    shapes = [(16, _warps(16, work)), (16, _warps(32, work)), (32, _warps(32, work))]
    tiles = [
        Tile(rows, lane, heads_first, warps)
        for heads_first in (first.heads_first, not first.heads_first)
        for rows, warps in dict.fromkeys(shapes)
        for lane in lanes
    ]
    return list(dict.fromkeys([first, *tiles]))


def choose(work: Work, run: Callable[[Tile], None], *, measure: bool) -> Tile:
    """Return the tile to use.

    Parameters
    ----------
    work : Work
        What it is for.
    run : callable
        Runs the kernel with a tile; it may be called again and again.
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


def _warps(rows: int, work: Work) -> int:
    """Return the warps for a tile: one for 1,024 numbers, so that a thread holds 32 (of 32 threads a warp)."""
    return max(1, min(8, rows * work.channel_block // 1024))


def _fastest(work: Work, run: Callable[[Tile], None]) -> Tile:
    from triton.testing import do_bench

    times = {tile: do_bench(lambda tile=tile: run(tile), warmup=5, rep=20, return_mode="median")
             for tile in candidates(work)}  # fmt: skip
    return min(times, key=lambda tile: times[tile])


def _card(device: torch.device) -> str:
    """Return the card and the version of Triton, as a file may be named."""
    import triton

    name = torch.get_device_module(device).get_device_name(device)
    return "".join(letter if letter.isalnum() else "-" for letter in f"{name} triton {triton.__version__}")


def _file(card: str) -> Path | None:
    return None if _folder is None else _folder / "tiles" / f"{card}.json"


def _read(card: str) -> dict[str, Tile]:
    """Return what is known for a card; a file that can't be read is made anew."""
    if card not in _known:
        file = _file(card)
        try:
            kept = json.loads(file.read_text()) if file is not None and file.is_file() else {}
            _known[card] = {key: Tile(**tile) for key, tile in kept.items()}
        except (ValueError, TypeError, AttributeError):
            _known[card] = {}
    return _known[card]


def _write(card: str, kept: dict[str, Tile]) -> None:
    if (file := _file(card)) is not None:
        write_json(file, {key: asdict(tile) for key, tile in sorted(kept.items())})
