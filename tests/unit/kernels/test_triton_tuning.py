"""How the Triton kernels' work is cut: by table, by measuring, kept on disk. Needs no Triton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.tuning import Cut, Work

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

    def last(work: Work, run: object) -> Cut:
        found.append(work.key)
        return tuning.candidates(work)[-1]

    monkeypatch.setattr(tuning, "_fastest", last)
    monkeypatch.setattr(tuning, "_card", lambda device: "A-CARD-triton-3-7")
    return found


def choose(work: Work, *, measure: bool = True) -> Cut:
    return tuning.choose(work, lambda cut: None, measure=measure)


EVERY_KERNEL = [replace(MESH, kernel=kernel) for kernel in tuning.KERNELS]


def test_the_table_follows_the_width_of_a_head() -> None:
    warps = [tuning.by_table(replace(MESH, channel_block=block)).warps for block in (16, 64, 128, 256, 1024)]
    assert warps == [1, 1, 2, 4, 8]


def test_nothing_is_read_ahead_where_a_block_has_one_tile() -> None:
    assert tuning.by_table(MESH).stages == 2
    assert tuning.by_table(TO_DATA).stages == 1
    of_sources = replace(TO_DATA, kernel="source_gradients")  # the sources are few: each has many edges
    assert tuning.by_table(of_sources).stages == 2


@pytest.mark.parametrize("work", EVERY_KERNEL, ids=lambda work: work.kernel)
def test_the_table_knows_shapes_alone(work: Work) -> None:
    assert tuning.by_table(work) == tuning.by_table(replace(work, device=torch.device("cuda", 3)))
    assert tuning.by_table(work) == tuning.by_table(replace(work, device=torch.device("cpu")))


@pytest.mark.parametrize("block", [16, 64, 128, 256])
@pytest.mark.parametrize("work", EVERY_KERNEL, ids=lambda work: work.kernel)
def test_candidates_are_few_and_small(work: Work, block: int) -> None:
    cuts = tuning.candidates(replace(work, channel_block=block))
    assert cuts[0] == tuning.by_table(replace(work, channel_block=block))
    assert len(set(cuts)) == len(cuts) <= 18
    assert {cut.heads_first for cut in cuts} == {True, False}
    assert all(1 <= cut.warps <= 16 and 1 <= cut.stages <= 4 for cut in cuts)


def test_options_are_those_of_the_kernels() -> None:
    assert Cut(False, 2, 3).options() == {"HEADS_FIRST": False, "num_warps": 2, "num_stages": 3}


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
    assert json.loads((tmp_path / "cuts" / "A-CARD-triton-3-7.json").read_text()).keys() == {MESH.key}
    tuning.keep_in(tmp_path)
    assert choose(MESH) == first
    assert len(measured) == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"key": {"rows": 16}}', '{"key": 3}'])
def test_a_broken_file_is_made_anew(content: str, measured: list[str], tmp_path: Path) -> None:
    file = tmp_path / "cuts" / "A-CARD-triton-3-7.json"
    file.parent.mkdir()
    file.write_text(content)
    tuning.keep_in(tmp_path)
    choose(MESH)
    assert json.loads(file.read_text()).keys() == {MESH.key}


def test_one_cut_for_all() -> None:
    cut = Cut(False, 4, 1)
    with tuning.fixed(cut):
        assert choose(MESH) == cut
        assert choose(replace(MESH, kernel="outputs"), measure=False) == cut
    assert choose(MESH, measure=False) == tuning.by_table(MESH)
