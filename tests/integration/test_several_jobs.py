"""``--multirun``: all jobs are checked first, and what becomes of them is said. And runs that come to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from etesian import cli

TINY = [
    "--config-name", "debug", "diagnostics.plot.enabled=false", "diagnostics.scores.enabled=false",
    "diagnostics.enable_progress_bar=false", "training.max_steps=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["etesian"])
    monkeypatch.chdir(tmp_path)


def test_a_wrong_job_stops_all_before_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *TINY, "--multirun", "training.seed=1,x"]) == 2
    assert "training.seed='x' is text" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_jobs_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *TINY, "--multirun", "training.seed=1,2", "training.run_id=one"]) == 2
    assert "2 jobs are named 'one'" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_a_job_whose_loss_is_lost_stops_and_tells_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = ["--multirun", "training.optimization.lr=1e30,1e-4"]
    assert cli.main(["train", *TINY, *swept, "training.run_id=lr-${training.optimization.lr}"]) == 2
    said = capsys.readouterr().err
    assert "the training loss after step 2 is nan" in said
    assert "job 1 of 2 stopped: none before it, the 1 after it were not started" in said
    assert [folder.name for folder in (tmp_path / "outputs").iterdir()] == ["lr-1e+30"]
