"""How the Triton kernels' work is cut: by table, by measuring, kept on disk. Needs no Triton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.tuning import Tile, Work

MESH = Work("scores", torch.device("cuda", 0), torch.bfloat16, 40_962, 40_962, 327_660, 16, 64, 11, 64)
FROM_DATA = replace(MESH, others=542_080, edges=852_918)
TO_DATA = replace(MESH, nodes=542_080, edges=1_626_240)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    tuning.keep_in(None)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the last candidate win every measurement; return what was measured."""
    found: list[str] = []

    def last(work: Work, run: object) -> Tile:
        found.append(work.key)
        return tuning.candidates(work)[-1]

    monkeypatch.setattr(tuning, "_fastest", last)
    monkeypatch.setattr(tuning, "_card", lambda device: "A-CARD-triton-3-7")
    return found


def choose(work: Work, *, measure: bool = True) -> Tile:
    return tuning.choose(work, lambda tile: None, measure=measure)


def test_the_table_follows_the_edges_a_node() -> None:
    assert [tuning.by_table(work).lanes for work in (MESH, FROM_DATA, TO_DATA)] == [2, 4, 1]
    assert tuning.by_table(replace(MESH, edges=0)).lanes == 1
    assert tuning.by_table(replace(MESH, nodes=3)).lanes == 16


def test_heads_come_first_unless_the_rows_of_one_stay_in_the_cache() -> None:
    assert not tuning.by_table(MESH).heads_first  # 84 MB, of one head 5
    assert not tuning.by_table(TO_DATA).heads_first
    assert tuning.by_table(FROM_DATA).heads_first  # 69 MB of one head
    assert tuning.by_table(replace(MESH, others=2562)).heads_first  # 5 MB of all


@pytest.mark.parametrize("work", [MESH, FROM_DATA, TO_DATA, replace(MESH, channel_block=128), replace(MESH, edges=1)])
def test_candidates_are_few_and_small(work: Work) -> None:
    tiles = tuning.candidates(work)
    assert tiles[0] == tuning.by_table(work)
    assert len(set(tiles)) == len(tiles) <= 18
    for tile in tiles:
        assert tile.rows in (16, 32)  # tensor cores want 16, and from 64 on several warps multiply together
        assert tile.rows % tile.lanes == 0


def test_measured_once_for_each_shape(measured: list[str]) -> None:
    assert choose(MESH) == tuning.candidates(MESH)[-1]
    assert choose(MESH) != tuning.by_table(MESH)
    choose(TO_DATA)
    choose(replace(MESH, dtype=torch.float16))
    choose(replace(MESH, kernel="outputs"))
    assert len(measured) == len(set(measured)) == 4


def test_not_measured_unless_asked(measured: list[str]) -> None:
    assert choose(MESH, measure=False) == tuning.by_table(MESH)
    assert choose(replace(MESH, device=torch.device("cpu"))) == tuning.by_table(MESH)
    assert measured == []


def test_deterministic_mode_has_the_table(measured: list[str]) -> None:
    choose(MESH)
    torch.use_deterministic_algorithms(True)
    try:
        assert choose(MESH) == tuning.by_table(MESH)
    finally:
        torch.use_deterministic_algorithms(False)
    assert choose(MESH) == tuning.candidates(MESH)[-1]


def test_kept_from_run_to_run(measured: list[str], tmp_path: Path) -> None:
    tuning.keep_in(tmp_path)
    first = choose(MESH)
    assert json.loads((tmp_path / "tiles" / "A-CARD-triton-3-7.json").read_text()).keys() == {MESH.key}
    tuning.keep_in(tmp_path)
    assert choose(MESH) == first
    assert len(measured) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"key": {"rows": 16}}', '{"key": 3}'])
def test_a_broken_file_is_made_anew(content: str, measured: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tiles" / "A-CARD-triton-3-7.json"
    file.parent.mkdir()
    file.write_text(content)
    tuning.keep_in(tmp_path)
    choose(MESH)
    assert json.loads(file.read_text()).keys() == {MESH.key}


def test_one_tile_for_all() -> None:
    tile = Tile(32, 8, True, 2)
    with tuning.fixed(tile):
        assert choose(MESH) == tile
    assert choose(MESH, measure=False) == tuning.by_table(MESH)
