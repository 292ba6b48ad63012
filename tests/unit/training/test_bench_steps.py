"""Whole training steps without a trainer: they are those of a run, and models may take turns on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import curve, train

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.training import bench_steps as module
from etesian.training.bench_steps import StepModel, bench_steps, first_batch, steps_json
from etesian.training.experiment import Experiment, check_experiment
from etesian.training.step_times import Turns, all_fit, fits, memory_note

CPU = torch.device("cpu")
SMALL = ["model.num_channels=8", "diagnostics.plot.enabled=false"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def experiment(cache: Path) -> Experiment:
    return make(cache)


@pytest.fixture(autouse=True)
def _random_state() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def make(cache: Path, *overrides: str) -> Experiment:
    return check_experiment(check_tree(compose("debug", None, [*SMALL, *overrides])), cache)


def models_of(experiment: Experiment, count: int = 2) -> dict[str, StepModel]:
    graph, batch, weights = experiment.load_graph(), first_batch(experiment), {}
    return {str(number): StepModel(experiment, graph, batch, weights) for number in range(count)}


def losses(model: StepModel, steps: int = 3) -> list[float]:
    found = []
    for _ in range(steps):
        model.step()
        assert model.loss is not None
        found.append(float(model.loss))
    return found


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_the_first_step_is_that_of_a_run(
    precision: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETESIAN_CACHE", str(cache))
    options = [f"training.precision={precision}", "training.max_steps=1", "training.run_id=one"]
    assert train("--config-name", "debug", *SMALL, *options, "diagnostics.scores.enabled=false") == 0
    first = curve(tmp_path / "outputs" / "one")[0]
    experiment = make(cache, f"training.precision={precision}")
    model = StepModel(experiment, experiment.load_graph(), first_batch(experiment), {})
    assert losses(model, 1)[0] == pytest.approx(first, rel=1e-6)


def test_steps_lower_the_loss_and_clip(cache: Path) -> None:
    quick = ["training.optimization.lr_scheduler.warmup_t=0", "training.optimization.lr=0.01"]
    free = losses(models_of(make(cache, *quick, "training.gradient_clip.val=null"), 1)["0"], 5)
    assert free[-1] < free[0]
    clipped = losses(
        models_of(make(cache, *quick, "training.gradient_clip={val: 1.0e-12, algorithm: norm}"), 1)["0"], 5
    )
    assert clipped[0] == free[0]
    assert clipped[-1] != free[-1]


def test_two_batches_a_step_are_twice_the_samples(cache: Path) -> None:
    experiment = make(cache, "training.accum_grad_batches=2")
    bench = bench_steps([("a", experiment)], own="a", repeats=1, min_seconds=1e-3, device=CPU)
    (result,) = bench.results
    assert result.samples_per_second == pytest.approx(1e3 * 4 / result.step.median)
    assert bench.accumulated == 2


def test_models_start_alike_where_names_match(experiment: Experiment) -> None:
    one, two = models_of(experiment).values()
    assert losses(one) == losses(two)


def test_models_that_take_turns_go_on_as_if_they_stayed(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[tuple[str, str]] = []
    models = models_of(experiment)
    for name, model in models.items():
        original = model.to
        monkeypatch.setattr(
            model,
            "to",
            lambda device, name=name, original=original: (moved.append((name, device.type)), original(device)),
        )
    staying, leaving = models_of(experiment, 1)["0"], models["0"]
    turns = Turns(models, CPU, lambda staying, name: not staying)
    turns.let_in("0")()
    turns.let_in("0")()
    turns.let_in("1")()
    assert turns.there == ["1"]
    assert moved == [("0", "cpu"), ("0", "cpu"), ("1", "cpu")]
    staying.step()
    assert losses(staying) == losses(leaving)
    turns = Turns(models, CPU, lambda staying, name: True)
    for name in ("0", "1"):
        turns.let_in(name)()
    assert turns.there == ["0", "1"]


def test_models_leave_only_as_far_as_room_is_needed() -> None:
    class Model:
        def __init__(self) -> None:
            self.device = "cpu"

        def to(self, device: torch.device) -> None:
            self.device = device.type

        def step(self) -> None:
            assert self.device == "meta"

    kept = {"a": (10, 5), "b": (10, 5), "large": (10, 70), "c": (10, 5)}  # 80 of 100 may be taken
    models = {name: Model() for name in kept}
    turns = Turns(models, torch.device("meta"), partial(fits, kept, 101))
    there = []
    for name in ("a", "b", "large", "c", "a", "large"):
        turns.let_in(name)()
        there.append("".join(sorted(other for other, model in models.items() if model.device == "meta")))
        assert sorted(turns.there) == sorted(other for other, model in models.items() if model.device == "meta")
    assert there == ["a", "ab", "large", "clarge", "aclarge", "large"]


def test_what_fits_stays() -> None:
    kept = {"a": (30, 10), "b": (30, 15)}
    assert all_fit(kept, None)
    assert all_fit(kept, 100)
    assert not all_fit(kept, 90)
    assert "all models stay on the device" in memory_note(kept, 10**9, stay=True)
    assert "take turns" in memory_note(kept, 90, stay=False)


def test_a_model_that_fails_is_listed(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    build = module.build_forecaster

    def failing(chosen: Experiment, graph: Any) -> Any:
        if chosen.config.training.seed == 1:
            raise UserError("nothing is compiled", mend="leave it out")
        if chosen.config.training.seed == 2:
            raise RuntimeError("CUDA out of memory.\nTried to allocate much")
        return build(chosen, graph)

    monkeypatch.setattr(module, "build_forecaster", failing)

    def seeded(seed: int) -> Experiment:
        training = experiment.config.training.model_copy(update={"seed": seed})
        return replace(experiment, config=experiment.config.model_copy(update={"training": training}))

    variants = [("one", seeded(1)), ("two", seeded(2)), ("three", seeded(3))]
    bench = bench_steps(variants, own="three", repeats=2, min_seconds=1e-3, device=CPU)
    assert [result.name for result in bench.results] == ["three", "one", "two"]
    assert bench.results[0].step is not None
    assert (bench.results[1].reason, bench.results[1].mend) == ("nothing is compiled", "leave it out")
    assert bench.results[2].reason == "fails: RuntimeError: CUDA out of memory. Tried to allocate much"
    content = steps_json(bench)
    assert [entry["own"] for entry in content["presets"]] == [True, False, False]
    assert content["batch"]["grid_points"] == 2592
