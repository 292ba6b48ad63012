"""A run whose steps are recorded is the run without, bit for bit; here what records computes again on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_recorder import FakeRecorder
from runs import assert_same_run, curve
from safetensors.torch import load_file
from torch import Tensor

from etesian.commands.common import check_tree
from etesian.compose import compose
from etesian.errors import UserError
from etesian.runtime.step_graphs import StepGraphs
from etesian.schema import rules
from etesian.training import bench_steps, fit
from etesian.training.bench_steps import StepModel, first_batch
from etesian.training.experiment import Experiment, check_experiment
from etesian.training.run_folder import RunFolder
from etesian.training.step_clock import BACKWARD, GRAPH, LOSS
from etesian.training.stop_request import StopRequest

SMALL = ["model.num_channels=8", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false",
         "diagnostics.enable_progress_bar=false",
         "dataloader.limit_batches={training: 3, validation: 1, test: 1}"]  # fmt: skip
GROWING = ["task.rollout={start: 1, epoch_increment: 1, maximum: 2}", "training.max_epochs=3"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[FakeRecorder]:
    made: list[FakeRecorder] = []

    def make(device: torch.device) -> FakeRecorder:
        made.append(FakeRecorder(device))
        return made[-1]

    class Watched(StepGraphs):
        def __init__(self, module: torch.nn.Module, *arguments: Any, **options: Any) -> None:
            super().__init__(module, *arguments, **options)
            made[-1].watch(module)

    monkeypatch.setattr(fit, "GraphRecorder", make)
    for user in ("etesian.training.module", "etesian.training.bench_steps"):
        monkeypatch.setattr(f"{user}.StepGraphs", Watched)
    for rule in (
        "_cuda_graphs",
        "_pinned_memory",
    ):  # those of a CPU: checkpoints for inference look at the config again
        monkeypatch.setattr(rules, rule, lambda config: iter(()))
    return made


def experiment_of(cache: Path, *options: str, recorded: bool) -> Experiment:
    experiment = check_experiment(check_tree(compose("debug", None, [*SMALL, *options])), cache)
    training = experiment.config.training.model_copy(update={"cuda_graphs": recorded})
    return replace(experiment, config=experiment.config.model_copy(update={"training": training}))


def run(folder: Path, cache: Path, name: str, *options: str, recorded: bool) -> Path:
    run_folder = RunFolder(folder, name)
    fit.train(experiment_of(cache, *options, recorded=recorded), run_folder, ["test"], StopRequest(), None)
    return run_folder.path


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ([], 1),
        (
            [
                "training.precision=64-true",
                "training.num_sanity_val_steps=1",
                "model.processor.gradient_checkpointing=true",
            ],
            1,
        ),
        (
            [
                *GROWING,
                "training.precision=bf16-mixed",
                "training.accum_grad_batches=2",
                "training.gradient_clip={val: 0.01, algorithm: norm}",
                "training.optimization.optimizer.implementation=fused",
            ],
            2,
        ),
    ],
    ids=["plain", "64 bits, checkpointed", "cast, growing, accumulated, clipped, fused"],
)
def test_losses_and_weights_are_those_without(
    options: list[str], shapes: int, tmp_path: Path, cache: Path, recorders: list[FakeRecorder],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    plain = run(tmp_path, cache, "plain", *options, recorded=False)
    assert recorders == []
    assert "CUDA graphs" not in capsys.readouterr().out
    recorded = run(tmp_path, cache, "recorded", *options, recorded=True)
    assert "training steps: recorded as CUDA graphs" in capsys.readouterr().out
    (recorder,) = recorders
    assert recorder.recordings == shapes
    assert recorder.launches == 3 * (3 if GROWING[1] in options else 2)
    assert_same_run(plain, recorded, ("train_loss", "val_loss", "lr"))


def test_a_recorded_run_goes_on_where_it_stopped(tmp_path: Path, cache: Path, recorders: list[FakeRecorder]) -> None:
    options = [*GROWING, "training.accum_grad_batches=2",
               "diagnostics.checkpoint.every_n_train_steps={save_frequency: 3, num_models_saved: -1}"]  # fmt: skip
    whole = run(tmp_path, cache, "whole", *options, recorded=True)
    (kept,) = (path for path in (whole / "checkpoints").iterdir() if path.stem.endswith("step_000003"))
    shutil.copytree(whole, tmp_path / "stopped")
    shutil.copy(kept, tmp_path / "stopped" / "checkpoints" / "last.ckpt")
    assert_same_run(whole, run(tmp_path, cache, "stopped", *options, recorded=True))
    shutil.copy(kept, tmp_path / "stopped" / "checkpoints" / "last.ckpt")
    assert_same_run(whole, run(tmp_path, cache, "stopped", *options, recorded=False))


def test_a_loss_that_is_no_number_stops_a_recorded_run(
    tmp_path: Path, cache: Path, recorders: list[FakeRecorder]
) -> None:
    options = ["training.optimization.lr=1e30", "training.optimization.lr_scheduler.warmup_t=0"]
    with pytest.raises(UserError, match=r"loss after step \d+ is (nan|inf)"):
        run(tmp_path, cache, "lost", *options, recorded=True)


class CopiesInPlace:
    """Batches stay on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.begun = 0

    def begin(self, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
        self.begun += 1
        return lambda: tensors


def test_recorded_steps_with_all_that_may_surround_them(
    tmp_path: Path, cache: Path, recorders: list[FakeRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that read, copies begun ahead, a growing rollout, accumulation, the profiler; and what inference gets."""
    copies = CopiesInPlace(torch.device("cpu"))
    monkeypatch.setattr(fit, "BatchCopies", lambda device: copies)
    options = [*GROWING, "training.accum_grad_batches=2", "dataloader.workers=threads",
               "dataloader.num_workers={training: 2, validation: 1, test: 0}"]  # fmt: skip
    plain = run(tmp_path, cache, "plain", *options, recorded=False)
    profiled = ["diagnostics.benchmark_profiler={mode: simple, warmup: 1}"]
    experiment = experiment_of(cache, *options, *profiled, recorded=True)
    ahead = experiment.config.dataloader.model_copy(update={"prefetch_to_device": True})
    experiment = replace(experiment, config=experiment.config.model_copy(update={"dataloader": ahead}))
    recorded = tmp_path / "recorded"
    fit.train(experiment, RunFolder(tmp_path, "recorded"), ["test"], StopRequest(), None)
    assert copies.begun == 3 * 3 + 3  # of training and of validation
    assert recorders[0].recordings == 2
    assert_same_run(plain, recorded, ("train_loss", "val_loss", "lr"))
    parts = {part["name"] for part in json.loads((recorded / "profiler" / "profile.json").read_text())["parts"]}
    assert GRAPH in parts
    assert not parts & {"encoder", "processor", "decoder", LOSS, BACKWARD}
    trained = torch.load(recorded / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]
    left = load_file(recorded / "checkpoints" / "inference-last" / "model.safetensors")
    weights = {name.removeprefix("weights/"): value for name, value in left.items() if name.startswith("weights/")}
    assert "model.encoder.block.query.weight" in weights
    for name, value in weights.items():
        torch.testing.assert_close(value, trained[f"forecaster.{name}"], rtol=0, atol=0)


@pytest.mark.parametrize("options", [[], ["training.accum_grad_batches=2", "training.precision=bf16-mixed"]])
def test_steps_of_a_benchmark_are_recorded_too(
    options: list[str], cache: Path, recorders: list[FakeRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for recorded in (False, True):
        experiment = experiment_of(cache, *options, recorded=recorded)
        with torch.random.fork_rng():
            model = StepModel(experiment, experiment.load_graph(), first_batch(experiment), {})
            found[recorded] = losses = []
            for step in range(4):
                if step == 2:
                    model.to(torch.device("cpu"))  # as where models take turns: what was recorded is recorded anew
                model.step()
                losses.append(float(model.loss))
    assert found[True] == found[False]
    (recorder,) = recorders
    assert recorder.recordings == 2
    bench = bench_steps.bench_steps(
        [("a", experiment)], own="a", repeats=1, min_seconds=1e-3, device=torch.device("cpu")
    )
    assert bench.results[0].step is not None
    assert recorders[-1].launches > 0


def test_a_run_gives_the_memory_of_its_steps_back(tmp_path: Path, cache: Path, recorders: list[FakeRecorder]) -> None:
    experiment = experiment_of(cache, "training.max_steps=1", recorded=True)
    trained = fit.train(experiment, RunFolder(tmp_path, "one"), ["test"], StopRequest(), None)
    assert trained.trainer.lightning_module.graphs is None
    assert len(curve(tmp_path / "one")) == 1
