"""``config validate``: everything that can be told without training is told, with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian import cli


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this module share, so that the embedded dataset is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)


def test_what_is_right_is_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "validate"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for text in ("training", "2005-12-01", "683", "t_sig995", "torch.nn.LayerNorm", "2592 data nodes, 162 hidden"):
        assert text in said.out, text
    assert said.out.rstrip().endswith("train.yaml: nothing is wrong")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "where", "said"),
    [
        (["system=gpu", "system.hardware.num_gpus_per_node=64"], "system.hardware", "64 'cuda'"),
        (["+model.layer_kernels.LayerNrom._target_=a.b"], "model.layer_kernels.LayerNrom", "'LayerNorm'"),
        (["model.layer_kernels.Linear._target_=torch.nn.Linaer"], "model.layer_kernels.Linear", "'Linear'"),
        (["model.layer_kernels.LayerNorm._target_=no_such.Norm"], "model.layer_kernels.LayerNorm", "no_such"),
        (["+model.layer_kernels.LayerNorm.epps=1"], "model.layer_kernels.LayerNorm", "epps"),
        (["system.input.dataset=/nope.zarr"], "dataset", "/nope.zarr"),
        (["dataloader.training.start=1940-01"], "dataloader.training.start", "1948-01"),
        (["dataloader.test.end=2050-01"], "dataloader.test.end", "2026-02"),
        (["dataloader.training.start=1948-13"], "dataloader.training.start", "'1948-13' is not a date"),
        (["dataloader.validation.start=2000-01"], "dataloader.training, dataloader.validation", "share 72 dates"),
        (["+dataloader.training.dataset_config.selct=[a]"], "dataloader.training.dataset_config", "selct"),
        (["data.forcing=[insolaton]"], "data.forcing", "did you mean 'insolation'?"),
        (["data.diagnostic=[tp]"], "data.diagnostic", "'tp'"),
        (["data.processors.normalizer.std=[t2m]"], "data.processors.normalizer.std", "'t2m'"),
        (["+data.processors.imputer.mean=[t2m]"], "data.processors.imputer.mean", "'t2m'"),
        (["model.bounding=[{kind:relu,variables:[q]}]"], "model.bounding", "'q'"),
        (["task.timestep=6h"], "task.timestep", "calendar month"),
        (["task.multistep_input=2000"], "dataloader.training", "no window"),
        (["dataloader.batch_size.training=5000"], "dataloader.batch_size", "683 samples"),
        (["diagnostics.scores.lead_times=500"], "dataloader.test", "no window"),
        (["diagnostics.plot.parameters=[t_sig99]"], "diagnostics.plot.parameters", "'t_sig995'"),
        (["diagnostics.plot.sample_idx=900"], "diagnostics.plot.sample_idx", "0 to 119"),
        (["system.input.graph=graph"], "system.input.graph", "*.pt"),
        (["diagnostics.scores.climatology_file=no.nc"], "diagnostics.scores.climatology_file", "no.nc"),
        (["model.layer_kernels.Activation={_target_:sys.exit}"], "model.layer_kernels.Activation", "sys.exit"),
        (["training.scalers.general_variable.weights={t2m:2}"], "training.scalers.general_variable", "'t2m'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_each_mistake(overrides: list[str], where: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "validate", *overrides]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert f"where:   {where}" in error or where in error.partition("where:")[2].partition("\n")[0]
    assert said in error


def test_mistakes_in_several_places_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        "data.processors.normalizer.std=[t2m]",
        "diagnostics.plot.parameters=[sst]",
        "diagnostics.plot.sample_idx=900",
    ]
    assert cli.main(["config", "validate", *wrong]) == 2
    assert capsys.readouterr().err.count("error: ") == 3


def test_train_stops_at_the_same_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "data.forcing=[insolaton]"]) == 2
    assert "did you mean 'insolation'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_kernels_are_run_before_the_dataset_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["model.layer_kernels.LayerNorm._target_=faulty_kernels.Scale", "~model.layer_kernels.LayerNorm.eps"]
    missing = "system.input.dataset=/nope.zarr"
    assert cli.main(["config", "validate", *wrong, missing]) == 2
    assert "/nope.zarr" in capsys.readouterr().err
    wrong[0] = wrong[0].replace("Scale", "FailsForward")
    assert cli.main(["config", "validate", *wrong, missing, "training.precision=bf16-mixed"]) == 2
    said = capsys.readouterr().err
    assert "/nope.zarr" not in said
    assert "FailsForward does not run on cpu with training.precision=bf16-mixed" in said
    assert "RuntimeError: no driver" in said
