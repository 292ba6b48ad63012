"""``benchmarks/loss_bands.py``: what it accepts, what it finds out, and that its settings compose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import loss_bands
from etesian.commands import common
from etesian.compose import compose
from loss_bands import FULL, QUICK, ROOM, TOLERANCE, WINDOW, Band, Plan

STEPS = np.arange(30)
SEEDS = [list(np.exp(-STEPS / 10) * factor) for factor in (1.0, 1.1, 1.2)]
OWN = SEEDS[1]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["loss_bands.py", *arguments])
    return loss_bands.main()


def test_a_curve_of_a_seed_is_inside_and_rounding_does_not_put_it_out() -> None:
    band = Band.of(SEEDS)
    for seed in SEEDS:
        assert band.judge(seed, OWN)["inside"]
    beside = band.judge(list(np.array(SEEDS[2]) * 1.001), OWN)
    assert beside["inside"]
    assert beside["steps_outside"] == len(STEPS) - WINDOW + 1
    assert 0 < beside["furthest"] < ROOM
    assert band.judge(OWN, OWN)["apart"] == 0.0
    assert band.judge(SEEDS[2], OWN)["apart"] == pytest.approx(0.5)


def test_a_curve_that_leaves_the_band_once_is_outside() -> None:
    once = list(OWN)
    once[17] *= 2
    verdict = Band.of(SEEDS).judge(once, OWN)
    assert not verdict["inside"]
    assert verdict["steps_outside"] == WINDOW  # it is part of so many running means


def test_a_lost_loss_and_a_band_without_width_are_no_success() -> None:
    assert not Band.of(SEEDS).judge([*OWN[:-1], float("nan")], OWN)["inside"]
    with np.errstate(invalid="ignore"):
        assert not Band.of([OWN, OWN]).judge(OWN, OWN)["inside"]


def test_losses_are_equal_up_to_the_tolerance_at_every_step() -> None:
    assert loss_bands.judge_exact([1.0, 2.0 * (1 + 0.9 * TOLERANCE)], [1.0, 2.0, 3.0])["equal"]
    verdict = loss_bands.judge_exact([1.0 * (1 - 1.1 * TOLERANCE), 2.0], [1.0, 2.0, 3.0])
    assert not verdict["equal"]
    assert verdict["largest"] == pytest.approx(1.1 * TOLERANCE, rel=1e-3)
    assert not loss_bands.judge_exact([float("nan")], [1.0])["equal"]


@pytest.mark.slow
def test_what_trains_otherwise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = {
        "fused projections": QUICK.fast["fused projections"],
        "rate doubled": ["training.optimization.lr=6.0e-3"],
        "another norm": ["model/layer_kernels=rmsnorm"],
    }
    monkeypatch.setattr(loss_bands, "QUICK", Plan(QUICK.base, fast, steps=7, exact_steps=3))
    monkeypatch.setattr(loss_bands, "SEEDS", (0, 1, 2))
    files = [str(tmp_path / "results.json"), "--picture", str(tmp_path / "bands.png")]
    assert run(monkeypatch, "--quick", "--output", *files) == 1
    content = json.loads((tmp_path / "results.json").read_text())
    same = {entry["name"]: entry["same"] for entry in content["fast"]}
    assert same == {"fused projections": True, "rate doubled": False, "another norm": False}
    plain = content["fast"][0]
    assert len(plain["losses"]) == 7
    assert plain["losses"] == pytest.approx(content["seeds"][str(content["settings"]["seed"])], rel=1e-2)
    assert len({tuple(losses) for losses in content["seeds"].values()}) == 3
    assert imread(tmp_path / "bands.png")[..., :3].std() > 0.05
    assert capsys.readouterr().out.count("NO") >= 2


@pytest.mark.slow
def test_the_settings_of_a_cpu_train_as_eager_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    assert run(monkeypatch, "--quick", "--output", str(file)) == 0
    content = json.loads(file.read_text())
    assert [entry["name"] for entry in content["fast"]] == list(QUICK.fast)
    assert all(len(entry["losses"]) == QUICK.steps for entry in content["fast"])


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["on a GPU", "on a CPU"])
def test_every_setting_composes_and_differs_from_eager(plan: Plan) -> None:
    lines = ["training.max_epochs=null", "training.max_steps=2", "training.precision=32-true", *plan.base]
    eager = common.check_tree(compose("train", None, lines))
    for name, overrides in plan.fast.items():
        config = common.check_tree(compose("train", None, [*lines, *overrides]))
        assert config != eager, name
        assert config.training.precision == "32-true"
        assert config.training.optimization.lr == eager.training.optimization.lr
        assert config.model.num_channels == eager.model.num_channels


def test_all_together_is_what_a_large_gpu_is_set_to() -> None:
    lines = ["training.max_epochs=null", "training.max_steps=2", *FULL.base, *FULL.fast["all together"]]
    composed = compose("train", None, lines)
    config = common.check_tree(composed)
    assert composed.choices["model/layer_kernels"] == "triton_mixed"
    assert config.model.compile
    assert config.training.cuda_graphs
    assert config.model.processor.fuse_projections
    assert config.training.optimization.optimizer.implementation == "fused"


def test_a_setting_that_does_not_compose_stops_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(QUICK, fast={"wrong": ["training.cuda_graph=true"]})
    monkeypatch.setattr(loss_bands, "QUICK", wrong)
    assert run(monkeypatch, "--quick") == 2
    printed = capsys.readouterr()
    assert "training.cuda_graph" in printed.err
    assert "seed 0" not in printed.out


def test_a_missing_gpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    files = ["--output", str(tmp_path / "a.json"), "--picture", str(tmp_path / "a.png")]
    assert run(monkeypatch, *files) == 2
    assert "this machine has 0 CUDA device(s)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
