"""What ``etesian.testing`` says of itself: the same checks, errors and losses as the command's."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import curve, environment, train

from etesian import cli
from etesian.compose import to_yaml
from etesian.errors import UserError, format_error
from etesian.schema.model import ModelSettings
from etesian.testing import ExperimentMaker, Size
from etesian.training.run_folder import resolved

SMALLER = Size(channels=16, layers=1, grid="o4")
QUICK = ["model.num_channels=16", "task.multistep_input=2", "training.optimization.lr=0.01"]
FAILS_FORWARD = ["model.layer_kernels.LayerNorm._target_=faulty_kernels.FailsForward",
                 "~model.layer_kernels.LayerNorm.eps"]  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["training.precision=bf16-mixed", "training.training_loss.kind=mae"],
        ["training.precision=64-true", "training.gradient_clip={val: 0.01, algorithm: value}"],
        ["training.accum_grad_batches=2", "training.deterministic=true"],
        ["task.rollout={start: 2, epoch_increment: 0, maximum: 2}", "training.optimization.lr_scheduler.warmup_t=1000"],
    ],
)
def test_the_losses_are_those_of_the_command(
    experiment: ExperimentMaker, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = experiment("train", overrides=[*QUICK, *overrides], size=SMALLER)
    steps = 12
    losses = run.train(steps)
    (tmp_path / "small.yaml").write_text(to_yaml(resolved(run.training_config(steps))))
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert train("--config-name", "small", "training.run_id=run", "diagnostics.log.interval=1") == 0
    assert losses == curve(tmp_path / "outputs" / "run")
    assert len(losses) == steps
    assert losses == run.train(steps)


@pytest.mark.parametrize(
    "overrides",
    [
        ["+model.layer_kernels.LayerNorn={_target_: torch.nn.LayerNorm}"],
        ["model.layer_kernels.LayerNorm={_target_: torch.nn.LayerNrom}"],
        ["model.layer_kernels.LayerNorm={_target_: no_such_library.Norm}"],
        ["model.layer_kernels.LayerNorm={_target_: torch.nn.LayerNorm, epsilon: 1.0e-5}"],
        ["model.layer_kernels.LayerNorm={_target_: faulty_kernels.FailsForward}"],
        FAILS_FORWARD,
        ["training.lr=1"],
        ["model/layer_kernels=rms_norm"],
        ["model.num_channels=30", "training.max_epochs=none"],
        ["data.diagnostic=[t_sig995]", "data.forcing=[t_sig995]"],
    ],
)
def test_an_error_is_the_command_s(
    experiment: ExperimentMaker, overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        experiment("train", overrides=overrides)
    assert cli.main(["train", *overrides]) == 2
    assert capsys.readouterr().err == format_error(caught.value) + "\n"


def test_a_kernel_that_can_not_run_here_can_be_looked_at(experiment: ExperimentMaker) -> None:
    run = experiment("train", overrides=FAILS_FORWARD, size=SMALLER, probe=False)
    assert run.kernel("LayerNorm").family == "custom:faulty_kernels.FailsForward"
    assert len(run.layers("LayerNorm")) == 3 + 2 + 4
    with pytest.raises(UserError, match=r"slot LayerNorm of the model: .* RuntimeError: no driver"):
        run.train(1)


def test_a_loss_that_is_no_number_is_an_error(experiment: ExperimentMaker) -> None:
    overrides = [*QUICK, "training.optimization.lr=1e6", "training.gradient_clip.val=null"]
    with pytest.raises(UserError, match="the training loss after step"):
        experiment("train", overrides=overrides, size=SMALLER).train(50)


def test_mistakes_name_the_arguments_and_the_folder_that_was_looked_in(
    experiment: ExperimentMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for options, where, said in (
        ({"config_dir": "config"}, "config_dir", f"there is no folder {tmp_path}/config"),
        ({"config_name": "mine", "config_dir": "configs"}, "config_name", f"none (in {tmp_path}/configs)"),
        ({"config_name": "configs/mine"}, "config_name", "mend:    config_dir configs config_name mine"),
    ):
        with pytest.raises(UserError) as caught:
            experiment(**options)
        assert caught.value.problems[0].where == where
        assert said in str(caught.value)
        assert "--config" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
@pytest.mark.parametrize("probe", [True, False])
def test_a_device_that_is_not_there_is_an_error(experiment: ExperimentMaker, probe: bool) -> None:
    with pytest.raises(UserError, match="this machine has 0 CUDA"):
        experiment("train", device="cuda", size=SMALLER, probe=probe)


def test_an_unknown_device_is_an_error(experiment: ExperimentMaker) -> None:
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        experiment("train", device="gpu", size=SMALLER)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["o96", "n320"])
def test_on_a_gpu(experiment: ExperimentMaker, name: str) -> None:
    run = experiment(name, overrides=["training.optimization.lr=0.01"], device="cuda", size=Size(channels=64))
    losses = run.train(20)
    assert losses[-1] < losses[0]
    assert run.train(20) == pytest.approx(losses, rel=1e-2)  # sums on a GPU come in any order


def test_a_config_for_many_gpus_runs_on_one_cpu(experiment: ExperimentMaker) -> None:
    run = experiment("n320", overrides=["system.hardware.num_gpus_per_node=4", "system.hardware.num_nodes=8"])
    assert run.full_config.system.hardware.num_nodes == 8
    assert run.config.system.hardware.model_dump() == {
        "accelerator": "cpu", "num_gpus_per_node": 1, "num_nodes": 1, "num_gpus_per_model": 1,
    }  # fmt: skip
    assert run.config.training.precision == "bf16-mixed"
    assert len(run.train(2)) == 2


def test_a_config_that_waits_less_on_a_gpu_runs_on_a_cpu(experiment: ExperimentMaker, tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(
        "defaults: [own_data, override system: gpu, _self_]\n"
        "training: {cuda_graphs: true, optimization: {optimizer: {implementation: fused}}}\n"
        "dataloader: {prefetch_to_device: true, workers: threads, num_workers: {training: 2}}\n"
    )
    run = experiment("quick", config_dir=tmp_path, size=SMALLER)
    assert run.full_config.training.cuda_graphs
    assert not run.config.training.cuda_graphs
    assert not run.config.dataloader.prefetch_to_device
    assert len(run.train(2)) == 2


def test_what_fills_a_slot_where(experiment: ExperimentMaker) -> None:
    norm = "+model.decoder.layer_kernels={LayerNorm: {_target_: torch.nn.RMSNorm, eps: 1.0e-6}}"
    run = experiment("own_data", overrides=[norm, "model.processor.qk_norm=true"], size=SMALLER)
    assert run.kernel("LayerNorm").target == run.kernel("LayerNorm", "encoder").target == "torch.nn.LayerNorm"
    own = run.kernels["decoder"]["LayerNorm"]
    assert (own.target, own.arguments, own.family) == ("torch.nn.RMSNorm", {"eps": 1e-6}, "rms_norm")
    assert (own.component, own.origin) == ("decoder", "override")
    assert "edge projection" in run.kernel("GraphAttention", "processor").note
    in_decoder = run.layers("LayerNorm", "decoder")
    assert {type(layer) for layer in in_decoder.values()} == {torch.nn.RMSNorm}
    assert all(name.startswith("decoder.") for name in in_decoder)
    everywhere = run.layers("LayerNorm")
    assert list(everywhere) == [name for name, _ in run.model.named_modules() if name in everywhere]
    assert in_decoder.items() < everywhere.items()
    assert list(run.layers("QueryNorm")) == ["processor.blocks.0.query_norm"]
    assert run.layers("QueryNorm", "encoder") == {}
    assert run.state_names == list(run.model.state_dict())
    assert {f"{name}.weight" for name in in_decoder} < set(run.state_names)


@pytest.mark.slow
def test_what_is_compiled(experiment: ExperimentMaker, capsys: pytest.CaptureFixture[str]) -> None:
    norms = ["+model.layer_kernels.LayerNorm._compile_={backend: eager, fullgraph: true}"]
    blocks = ["model.compile=[{module: etesian.model.block.Block, options: {backend: eager, dynamic: false}}]"]
    plain, one, other = (experiment("train", overrides=[*QUICK, *o], size=SMALLER) for o in ([], norms, blocks))
    assert one.kernel("LayerNorm", "decoder").compile == {"backend": "eager", "fullgraph": True}
    assert plain.kernel("LayerNorm").compile is None
    assert plain.state_names == one.state_names == other.state_names
    assert list(plain.layers("LayerNorm")) == list(one.layers("LayerNorm"))
    expected = pytest.approx(plain.train(3), rel=1e-5)
    capsys.readouterr()
    for run in (one, other):
        assert run.train(3) == expected
        assert "the first batch compiled" in capsys.readouterr().out


def test_a_compilation_of_nothing_is_the_command_s_error(experiment: ExperimentMaker) -> None:
    with pytest.raises(UserError, match=r"model\.compile\[0\]"):
        experiment("train", overrides=["model.compile=[{module: torch.nn.Conv2d}]"])


def test_what_is_not_there_is_an_error(experiment: ExperimentMaker) -> None:
    run = experiment("train", overrides=QUICK, size=SMALLER)
    with pytest.raises(UserError, match=r"unknown layer kernel slot 'layernorm'.*\n.*\n.*did you mean 'LayerNorm'"):
        run.kernel("layernorm")
    with pytest.raises(UserError, match="unknown component 'procesor'"):
        run.kernel("LayerNorm", "procesor")
    with pytest.raises(UserError, match="unknown layer kernel slot 'Norm'"):
        run.layers("Norm")
    with pytest.raises(UserError, match="unknown component 'all'"):
        run.layers("LayerNorm", "all")
    with pytest.raises(UserError, match="steps is 0"):
        run.train(0)


def test_sizes_are_limits(experiment: ExperimentMaker) -> None:
    model = ["model.num_channels=24", "model.encoder.num_heads=8", "model.processor.num_layers=3"]
    graph = ["graph.nodes.hidden.resolution=3", "graph.edges.hidden2hidden.scale_resolutions=[1,3]",
             "graph.edges.hidden2data.num_nearest_neighbours=20", "graph.edges.data2hidden.cutoff_factor=1.1",
             "graph.edge_attributes.edge_length=none"]  # fmt: skip
    run = experiment("own_data", overrides=[*model, *graph], size=Size(channels=None, heads=5, resolution=0, layers=4))
    small: ModelSettings = run.config.model
    assert (small.num_channels, small.encoder.num_heads, small.processor.num_layers) == (24, 4, 3)
    edges = run.config.graph.edges
    assert run.config.graph.nodes.hidden.resolution == 0
    assert edges.hidden2hidden.scale_resolutions is None
    assert (edges.hidden2data.num_nearest_neighbours, edges.data2hidden.cutoff_factor) == (12, 1.1)
    assert run.full_config.model.encoder.num_heads == 8
    assert run.config.dataloader.batch_size.training == 2


def test_a_size_that_makes_no_model_is_an_error(experiment: ExperimentMaker) -> None:
    with pytest.raises(UserError, match="there is no grid 'o9x'"):
        experiment("train", size=Size(grid="o9x"))


def test_the_dataset_holds_what_the_config_names(experiment: ExperimentMaker) -> None:
    overrides = [
        "data.diagnostic=[tp]", "data.processors.normalizer.std=[swh]", "+data.processors.imputer.mean=[sst]",
        "model.bounding=[{kind: relu, variables: [tcw]}]", "diagnostics.plot.parameters=[2t]",
        "+training.scalers.general_variable.weights={q_850: 2.0}",
        "+dataloader.training.dataset_config.select=[cos_latitude, lsm, mine]",
    ]  # fmt: skip
    run = experiment("own_data", overrides=overrides, size=SMALLER)
    inputs, outputs = run.variables.input, run.variables.output
    assert {"swh", "sst", "tcw", "2t", "q_850", "mine"} <= set(run.variables.prognostic)
    assert "tp" in outputs
    assert "tp" not in inputs
    assert {"lsm", "cos_latitude", "sin_julian_day"} <= set(run.variables.forcing)


def test_where_a_config_names_nothing_to_forecast_there_is_some(experiment: ExperimentMaker) -> None:
    assert experiment("train", size=SMALLER).variables.prognostic == ("2t", "msl", "z_500")
    assert experiment("own_data", size=SMALLER).variables.prognostic == ("2t", "msl", "z_500")


def test_given_variables_are_all_there_are(experiment: ExperimentMaker) -> None:
    names = ["t", "cos_latitude", "rain"]
    run = experiment("own_data", overrides=["data.diagnostic=[rain]"], variables=names, size=SMALLER)
    assert list(run.variables.names) == names
    with pytest.raises(UserError, match="'rian' is not in the dataset"):
        experiment("own_data", overrides=["data.diagnostic=[rian]"], variables=names, size=SMALLER)


@pytest.mark.parametrize("timestep", ["12h", "1d"])
def test_a_timestep_of_several_dates(experiment: ExperimentMaker, timestep: str) -> None:
    overrides = ["data.frequency=6h", f"task.timestep={timestep}", "task.validation_rollout=3"]
    assert len(experiment("own_data", overrides=overrides, size=SMALLER).train(2)) == 2


def test_training_leaves_the_process_as_it_was(experiment: ExperimentMaker) -> None:
    torch.manual_seed(5)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    run = experiment("train", overrides=[*QUICK, "training.deterministic=true"], size=SMALLER)
    run.train(2)
    assert not torch.are_deterministic_algorithms_enabled()
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_without_pytest_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pytest'] = None; import etesian.testing"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "etesian.testing needs pytest: pip install pytest" in done.stderr


def test_importing_it_is_cheap(tmp_path: Path) -> None:
    code = "import sys, etesian.testing; print('torch' in sys.modules, 'hydra' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"


def test_a_graph_file_does_not_fit_the_synthetic_dataset(experiment: ExperimentMaker, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: [own_data, {override graph: existing}, _self_]\nsystem: {input: {graph: mine.pt}}\n"
    )
    with pytest.raises(UserError, match="graph file, which does not fit the synthetic dataset"):
        experiment("mine", config_dir=tmp_path)
