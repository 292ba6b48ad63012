"""Parts of a loss add up, and what a process lacks is told."""

from __future__ import annotations

import pytest
import torch
from small_model import make_graph, make_settings

from etesian.errors import UserError
from etesian.training.losses import MSELoss
from etesian.training.shared_model import SharedModel


@pytest.mark.parametrize("count", [2, 3])
def test_the_mean_of_the_parts_is_the_loss(count: int):
    """The mean over processes, by which losses are logged and gradients come together."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(14, 3, generator=generator, dtype=torch.float64)
    forecast, target = (torch.randn(2, 1, 14, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    partition, parts = SharedModel(make_graph(), count, make_settings()).partition, []
    for number in range(count):
        loss, points = MSELoss(weights), partition.points(number)
        loss.keep(points, count * (points.stop - points.start) / 14)
        parts.append(loss(forecast[:, :, points], target[:, :, points]))
    torch.testing.assert_close(torch.stack(parts).mean(0), MSELoss(weights)(forecast, target))


def test_fewer_nodes_than_chunks():
    mapper = {"num_heads": 2, "num_chunks": 4, "gradient_checkpointing": "full"}
    with pytest.raises(UserError) as caught:
        SharedModel(make_graph(), 2, make_settings(encoder=mapper, decoder=mapper))
    (problem,) = caught.value.problems
    assert problem.where == "model.encoder.num_chunks"
    assert problem.what == (
        "model.encoder.num_chunks=4, but a process has 2 of the hidden nodes with system.hardware.num_gpus_per_model=2"
    )
    assert problem.allowed == "a whole number from 1 to 2"
