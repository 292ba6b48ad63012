"""The place of a process among those that share a model and those that see other samples."""

from __future__ import annotations

import pytest

from etesian.training.topology import Topology


def test_neighbours_share_a_model():
    places = [Topology.place(rank, 8, 4) for rank in range(8)]
    assert [place.data_rank for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [place.model_rank for place in places] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {(place.world, place.model_size, place.data_size) for place in places} == {(8, 4, 2)}


def test_without_sharing_every_process_has_a_model():
    assert [Topology.place(rank, 3, 1).data_rank for rank in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("rank", "world", "model_size"), [(0, 6, 4), (4, 4, 2), (0, 2, 0)])
def test_what_does_not_multiply_out_has_no_place(rank: int, world: int, model_size: int):
    with pytest.raises(ValueError, match=f"model_size={model_size}"):
        Topology.place(rank, world, model_size)
