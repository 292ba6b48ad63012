"""Libraries that are not installed are named with their extra, before any data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etesian import cli
from etesian.errors import UserError
from etesian.schema.diagnostics import LogSettings
from etesian.training.tracking.libraries import MLFLOW, check_installed, check_libraries


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("tensorboard", "mlflow", "wandb"):
        for name in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)


@pytest.mark.usefixtures("without")
def test_each_is_named() -> None:
    log = LogSettings(
        tensorboard={"enabled": True}, mlflow={"enabled": True, "tracking_uri": "http://a"}, wandb={"enabled": True}
    )
    with pytest.raises(UserError) as caught:
        check_libraries(log)
    for problem, extra in zip(caught.value.problems, ("tensorboard", "mlflow", "wandb"), strict=True):
        assert problem.where == f"diagnostics.log.{extra}.enabled"
        assert problem.mend == f"pip install 'etesian[{extra}]', or diagnostics.log.{extra}.enabled=false"


@pytest.mark.usefixtures("without")
def test_mlflow_offline_needs_nothing() -> None:
    check_libraries(LogSettings(mlflow={"enabled": True, "offline": True}))


def test_a_folder_of_that_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs_of_mine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="MLflow is not installed") as caught:
        check_installed([(MLFLOW._replace(module="logs_of_mine"), "--tracking-uri")])
    assert caught.value.problems[0].mend == "pip install 'etesian[mlflow]'"


@pytest.mark.usefixtures("without")
def test_training_stops_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["diagnostics.log.mlflow.enabled=true", "diagnostics.log.mlflow.tracking_uri=http://localhost:5000",
             "diagnostics.log.wandb.enabled=true"]  # fmt: skip
    nothing = ["--config-name", "own_data", "data.forcing=[]", "system.input.dataset=none.zarr"]
    assert cli.main(["train", *nothing, *asked]) == 2
    said = capsys.readouterr().err
    assert "pip install 'etesian[mlflow]'" in said
    assert "pip install 'etesian[wandb]'" in said
    assert "none.zarr" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without")
def test_so_does_an_upload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("diagnostics: {log: {interval: 1}}\n")
    assert cli.main(["mlflow", "sync", str(tmp_path), "--tracking-uri", "http://localhost:5000"]) == 2
    assert "pip install 'etesian[mlflow]'" in capsys.readouterr().err


def test_what_may_be_wrong_with_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    empty, plain = tmp_path / "empty", tmp_path / "plain"
    empty.mkdir()
    plain.mkdir()
    (plain / "config.yaml").write_text("diagnostics: {log: {interval: 1}}\n")
    for arguments, said in (
        (["none"], "there is no run 'none'"),
        ([str(empty)], "is no run: its config.yaml is missing"),
        ([str(plain)], "mend:    --tracking-uri http://HOST:PORT"),
        ([str(plain), "--tracking-uri", "host"], "--tracking-uri='host' is no address of a server"),
        (["--tracking-url", "http://host", "x"], "did you mean '--tracking-uri'"),
    ):
        assert cli.main(["mlflow", "sync", *arguments]) == 2
        assert said in capsys.readouterr().err
