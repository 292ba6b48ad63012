"""Every loss for one forecast goes down when a small model is trained with it."""

from __future__ import annotations

import pytest

from etesian.testing import ExperimentMaker, Size

pytestmark = pytest.mark.slow

GRID = Size(grid="regular-10deg")
SPECTRAL = ["training.training_loss={kind: spectral, scalers: []}"]
PARTS = "+training.training_loss.losses=[{kind: mse, scalers: [node_weights]}, {kind: spectral}]"


@pytest.mark.parametrize(
    "loss",
    [
        *([f"training.training_loss.kind={kind}"] for kind in ("mse", "rmse", "mae", "huber", "log_cosh")),
        [*SPECTRAL, "+training.training_loss.distance=coefficients"],
        [
            "training.training_loss={kind: combined, scalers: [general_variable]}",
            PARTS,
            "+training.training_loss.loss_weights=[1.0, 0.1]",
        ],
    ],
    ids=str,
)
def test_it_falls(experiment: ExperimentMaker, loss: list[str]) -> None:
    losses = experiment("debug", overrides=[*loss, "training.optimization.lr=0.01"], size=GRID).train(20)
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_a_rollout_with_weights_of_its_steps(experiment: ExperimentMaker) -> None:
    """The mean of the two steps alone is that of both."""
    scalers = ["training.training_loss.scalers=[node_weights, lead]", "++training.scalers.lead.kind=lead_time"]
    steps = ["task.rollout={start: 2, epoch_increment: 0, maximum: 2}", "task.validation_rollout=2"]
    first = experiment("debug", overrides=[*scalers, *steps, "++training.scalers.lead.weights=[1.0, 0.0]"], size=GRID)
    second = experiment("debug", overrides=[*scalers, *steps, "++training.scalers.lead.weights=[0.0, 1.0]"], size=GRID)
    plain = experiment("debug", overrides=["training.training_loss.scalers=[node_weights]", *steps], size=GRID)
    one, two, mean = (run.train(1)[0] for run in (first, second, plain))
    assert mean == pytest.approx((one + two) / 2, rel=1e-5)
    assert one != pytest.approx(two, rel=1e-3)
