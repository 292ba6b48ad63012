"""Training from stores that the tools make, with the path as the one override; and whether the graph matters there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import curve, run
from test_anemoi_create import created  # noqa: F401 - a fixture

from etesian import cli

pytestmark = pytest.mark.slow

LIMITS = ["dataloader.limit_batches={training: 5, validation: 2, test: 2}", "training.max_epochs=2",
          "graph.nodes.hidden.resolution=1", "diagnostics.log.interval=1"]  # fmt: skip
"""What makes a run short; none of it is needed."""


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty days of the shallow-water flow at truncation 21."""
    path = tmp_path_factory.mktemp("flow") / "flow.zarr"
    assert cli.main(["dataset", "make", "shallow-water", str(path), "--truncation", "21", "--days", "60"]) == 0
    return path


def test_a_store_of_anemoi_datasets_trains(created, tmp_path: Path):  # noqa: F811
    run(tmp_path, tmp_path / "cache", "--config-name", "own_data", f"system.input.dataset={created[0]}",
        "training.run_id=own", *LIMITS)  # fmt: skip
    scores = json.loads((tmp_path / "outputs" / "own" / "metrics.json").read_text())
    assert sorted(scores["variables"]) == ["t2m", "u10"]
    assert len(curve(tmp_path / "outputs" / "own")) == 10


@pytest.mark.parametrize("config", ["shallow_water", "own_data"])
def test_a_shallow_water_store_trains(flow: Path, tmp_path: Path, config: str):
    run(tmp_path, tmp_path / "cache", "--config-name", config, f"system.input.dataset={flow}", "training.run_id=own",
        *LIMITS)  # fmt: skip
    left = tmp_path / "outputs" / "own"
    scores = json.loads((left / "metrics.json").read_text())
    assert {"u", "v", "height"} <= set(scores["variables"])
    assert list((left / "plots").glob("map_height_*.png"))


@pytest.mark.timeout(900)
def test_the_graph_is_used(flow: Path, tmp_path: Path):
    """Without what passes along the edges the same model forecasts worse: RMSE ratios at 6 h, mean of u, v, height."""
    options = [
        "--config-name", "shallow_water", f"system.input.dataset={flow}", "graph.nodes.hidden.resolution=3",
        "model.num_channels=32", "model.processor.num_layers=2", "dataloader.batch_size.training=2",
        "training.max_epochs=14", "training.gradient_clip={val: 1.0, algorithm: norm}",
        "training.optimization.lr=4e-3", "training.optimization.lr_scheduler.warmup_t=20",
        "diagnostics.plot.enabled=false", "diagnostics.scores.lead_times=1",
    ]  # fmt: skip
    run(tmp_path, tmp_path / "cache", *options, "training.run_id=with")
    run(tmp_path, tmp_path / "cache", *options, "training.run_id=without",
        "model.layer_kernels.GraphAttention._target_=no_edges.NoEdges")  # fmt: skip
    errors = {}
    for run_id in ("with", "without"):
        scores = json.loads((tmp_path / "outputs" / run_id / "metrics.json").read_text())["variables"]
        errors[run_id] = {name: scores[name]["lead_times"]["6 h"]["model"]["rmse"] for name in ("u", "v", "height")}
    ratios = {name: errors["with"][name] / errors["without"][name] for name in errors["with"]}
    print(f"RMSE at 6 h: {errors}; ratios: {ratios}")
    assert sum(ratios.values()) / len(ratios) <= 0.7, (errors, ratios)
