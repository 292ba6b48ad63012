"""What is asked of Slurm, and what never gets there."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from etesian import cli

CPU = "system.hardware.accelerator=cpu"
DEBUG = ["submit", "--config-name", "debug", "system=slurm"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/nowhere/python"])
    return tmp_path


@pytest.fixture
def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name that keeps its arguments and says it is job 41."""
    program, said = folder / "bin" / "sbatch", folder / "said"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\necho 41\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return said


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main([*DEBUG, CPU, "training.run_id=one", "--dry-run", *options]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    return script


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main([*DEBUG, CPU, *options]) == 2
    return capsys.readouterr().err


def test_a_script_is_printed_and_nothing_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a GPU's kernels nothing is tried on this machine, which has none."""
    script = printed(capsys, "system.hardware.accelerator=cuda")
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert f"#SBATCH --output={folder}/outputs/one/slurm-%j.out\n" in script
    assert " -m etesian train --config-name debug " in script
    assert "training.run_id=one" in script
    assert not (folder / "outputs").exists()


def test_it_is_submitted(folder: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*DEBUG, CPU, "training.run_id=one", "--after", "12"]) == 0
    script = folder / "outputs" / "one" / "submit.sh"
    assert sbatch.read_text().split() == ["--parsable", "--dependency=afterany:12", str(script)]
    assert script.read_text().startswith("#!/bin/bash\n")
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "Job 41: one", f"script: {script}", f"log:    {folder}/outputs/one/slurm-41.out"
    ]  # fmt: skip


def test_a_sweep_is_an_array(folder: Path, sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*DEBUG, CPU, "training.run_id=seeds", "--sweep", "training.seed=1,2"]) == 0
    script = (folder / "outputs" / "sweep-seeds" / "submit.sh").read_text()
    assert "#SBATCH --array=0-1\n" in script
    cases = [line for line in script.splitlines() if "overrides=(" in line]
    assert [("training.seed=1" in line, "training.run_id=seeds-0" in line) for line in cases] == [
        (True, True), (False, False)
    ]  # fmt: skip
    assert 'train --config-name debug "${overrides[@]}"' in script
    assert "Job 41 (2 runs): sweep-seeds" in capsys.readouterr().out


def test_without_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", "--config-name", "debug"]) == 2
    assert "system.slurm is null" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["model.layer_kernels.LayerNorm._target_=torch.nn.RMSNrom"], "did you mean 'RMSNorm'?"),
        (["system.input.dataset=nowhere.zarr"], "nowhere.zarr"),
        (["system.output.root=/etc/hostname"], "/etc/hostname is a file"),
        (["system.slurm.time=00:02:00"], "system.slurm.signal_seconds=180 leaves nothing"),
        (["system.slurm.partitoin=gpu"], "partitoin"),
        (["training.max_time=soon"], "training.max_time='soon' is no time"),
        (["--after", "job"], "'job' is no job id"),
        (["--sweep", "system.slurm.time=01:00:00,02:00:00"], "differ in system.slurm"),
        (["--sweep", "training.seed=1,2", "training.run_id=a,b"], "some runs of the sweep have one name"),
        (["--sweep", "model.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm,torch.nn.RMSNrom"], "run 2 of 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_never_enters_the_queue(
    folder: Path, sbatch: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert said in refused(capsys, *options)
    assert not sbatch.exists()
    assert not (folder / "outputs").exists()


def test_a_run_that_lives_is_not_submitted_again(sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etesian.training.run_folder import RunFolder
    from etesian.training.run_lock import RunLock

    with RunLock(RunFolder(Path("outputs"), "one")):
        assert "is being trained by process" in refused(capsys, "training.run_id=one")
        assert not sbatch.exists()
        assert cli.main([*DEBUG, CPU, "training.run_id=one", "--after", "12"]) == 0


def test_without_sbatch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no command sbatch here" in refused(capsys, "training.run_id=one")


def test_what_slurm_refuses(sbatch: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    assert "Slurm refuses the job: sbatch: error: invalid partition" in refused(capsys, "training.run_id=one")
