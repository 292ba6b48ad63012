"""The command line: exit codes, messages, options, and how quickly help comes."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from etesian import cli
from etesian.errors import UserError

SRC = Path(cli.__file__).parents[1]
HEAVY = ("torch", "hydra", "omegaconf", "pydantic", "numpy", "anemoi", "pytorch_lightning", "rich", "yaml")
NAMES = [name for name, _, _ in cli.COMMANDS]


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "etesian", *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )


def cpu_seconds(*arguments: str, status: int) -> float:
    """Processor time of a command, which other work on the machine does not lengthen as it does wall time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process(*arguments).returncode == status
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that has to stop on a user's mistake; return what it said."""
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said
    return said


class TestHelp:
    def test_no_argument_shows_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main([]) == 0
        assert capsys.readouterr().out.startswith("usage: anemoi-training")

    @pytest.mark.parametrize(
        "command",
        [
            [],
            *([name] for name in NAMES),
            ["config", "show"],
            ["config", "validate"],
            ["config", "generate"],
            ["kernels", "list"],
            ["kernels", "check"],
        ],
        ids=" ".join,
    )
    def test_every_command_has_help_with_an_example(
        self, command: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main([*command, "--help"]) == 0
        said = capsys.readouterr().out
        assert f"usage: {' '.join(['anemoi-training', *command])}" in said
        assert "example" in said

    @pytest.mark.parametrize("command", [[], *([name] for name in NAMES)], ids=" ".join)
    def test_imports_nothing_heavy(self, command: list[str]) -> None:
        code = (
            "import sys; from etesian.cli import main; status = main(sys.argv[1:]);"
            f"heavy = [m for m in {HEAVY} if m in sys.modules]; sys.exit(f'imported {{heavy}}' if heavy else status)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--help"],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def test_comes_within_half_a_second(self) -> None:
        assert min(cpu_seconds("--help", status=0) for _ in range(3)) < 0.5


class TestMistakes:
    def test_unknown_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = fails(capsys, "trian")
        assert "'trian' is no command" in said
        assert "did you mean 'train'?" in said

    def test_unknown_action(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "did you mean 'show'?" in fails(capsys, "config", "shwo")

    def test_no_action(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "<action>" in fails(capsys, "config")

    def test_unknown_option(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = fails(capsys, "train", "--confg-name", "x")
        assert "'--confg-name' is no option" in said
        assert "did you mean '--config-name'?" in said

    def test_options_are_not_abbreviated(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "'--config-n' is no option" in fails(capsys, "config", "show", "--config-n", "x")

    def test_an_option_without_its_value(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "expected one argument" in fails(capsys, "train", "--config-name")

    def test_an_argument_too_many(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "'x' is one argument too many" in fails(capsys, "version", "x")

    def test_cfg_prints_the_job_only(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = fails(capsys, "train", "--cfg", "hydra")
        assert "allowed: job" in said

    def test_multirun_belongs_to_train(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "'--multirun' is no option" in fails(capsys, "config", "show", "--multirun")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["training.max_epoch=3"], "did you mean 'training.max_epochs'"),
            (["+training.nonsense=3"], "no key 'nonsense'"),
            (["model=graphtransfomer"], "did you mean 'graphtransformer'"),
            (["--config-name", "nothing"], "there is no config named 'nothing'"),
            (["--config-dir", "/nothing"], "--config-dir /nothing does not exist"),
            (["training.precision=fp8"], "'32-true'"),
            (["training.seed=1,2"], "--multirun"),
            (["model.layer_kernels.Linear._target_"], "it has no '='"),
            (["model.layer_kernels.LayerNrom._target_=a.b"], "did you mean 'LayerNorm'?"),
            (
                ["training.scalers.general_variabl.weights={}"],
                "did you mean 'training.scalers.general_variable'? To add it: +",
            ),
            (["dataloader.training.dataset_config.selct=[a]"], "to add it: +dataloader.training.dataset_config.selct="),
        ],
    )
    def test_in_a_config(self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert said in fails(capsys, "config", "show", *arguments)

    def test_from_a_process(self) -> None:
        done = process("config", "validate", "training.max_epoch=3")
        assert done.returncode == 2
        assert done.stderr.startswith("error: training.max_epoch")
        assert "Traceback" not in done.stderr

    def test_is_told_within_ten_seconds(self) -> None:
        assert cpu_seconds("config", "validate", "training.max_epoch=3", status=2) < 10


class TestOtherEnds:
    """A stand-in command that ends in each way."""

    @pytest.mark.parametrize(
        ("end", "status"),
        [
            (UserError("no"), 2),
            (KeyboardInterrupt(), 130),
            (SystemExit(0), 0),
            (SystemExit(None), 0),
            (SystemExit(3), 3),
            (OSError(36, "File name too long", "x" * 300), 2),
            (MemoryError(), 2),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 2),
            (OSError(28, "No space left on device"), 2),
            (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 938816 vs 938704"), 2),
            (RuntimeError("NetCDF: HDF error"), 2),
        ],
    )
    def test_status(self, end: BaseException, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
        version = importlib.import_module("etesian.commands.version")

        def run(_: object) -> int:
            raise end

        monkeypatch.setattr(version, "run", run)
        assert cli.main(["version"]) == status

    def test_a_fault_of_the_program_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        version = importlib.import_module("etesian.commands.version")
        monkeypatch.setattr(version, "run", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(["version"])

    def test_a_reader_that_went_away(self) -> None:
        done = subprocess.run(
            f"{sys.executable} -m etesian --help | true; exit ${{PIPESTATUS[0]}}",
            shell=True,
            executable="/bin/bash",
            env={**os.environ, "PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""


class TestOverridesAndOptions:
    def test_overrides_may_stand_on_both_sides_of_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["training.seed=1", "--config-name", "debug", "training.max_steps=7", "task.multistep_input=3"]
        assert cli.main(["train", *words, "--cfg", "job"]) == 0
        said = capsys.readouterr().out
        assert "max_steps: 7" in said
        assert "multistep_input: 3" in said

    def test_short_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["train", "-cn", "debug", "-m", "training.seed=5,6", "-c", "job"]) == 0
        first, second = capsys.readouterr().out.split("---\n")
        assert "seed: 5" in first
        assert "seed: 6" in second

    def test_options_are_these(self) -> None:
        hydra = ["--cfg", "--config-dir", "--config-name", "--help"]
        assert options("train") == [*hydra, "--multirun"]
        assert options("config", "show") == [option for option in hydra if option != "--cfg"]
        assert options("config", "validate") == hydra
        assert options("config", "generate") == ["--help"]
        assert options("kernels", "list") == ["--config-dir", "--help"]
        assert options("kernels", "check") == hydra
        assert options("version") == ["--help"]
        assert options("profile") == [
            "--cfg",
            "--config-dir",
            "--config-name",
            "--detailed",
            "--help",
            "--output",
            "--steps",
        ]
        assert NAMES == [
            "train",
            "submit",
            "profile",
            "config",
            "kernels",
            "graph",
            "model",
            "checkpoint",
            "forecast",
            "evaluate",
            "mlflow",
            "dataset",
            "version",
        ]


def options(command: str, action: str | None = None) -> list[str]:
    parser = cli.Parser(prog="x")
    module = importlib.import_module(f"etesian.commands.{command}")
    module.add_arguments(parser)
    if action is not None:
        parser = next(a for a in parser._actions if hasattr(a, "choices") and a.choices).choices[action]
    return cli._options(parser)


class TestVersion:
    def test_names_the_libraries(self, capsys: pytest.CaptureFixture[str]) -> None:
        import torch

        assert cli.main(["version"]) == 0
        said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert said["etesian"] == importlib.import_module("etesian").__version__
        assert said["torch"] == torch.__version__

    def test_option(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out.startswith("etesian ")


class TestShow:
    def test_prints_yaml_that_reads_back(self, capsys: pytest.CaptureFixture[str]) -> None:
        import yaml

        assert cli.main(["config", "show", "training.max_epochs=3"]) == 0
        tree = yaml.safe_load(io.StringIO(capsys.readouterr().out))
        assert tree["training"]["max_epochs"] == 3
        assert tree["dataloader"]["training"]["start"] == "1948-01"

    def test_a_wrong_config_is_shown_all_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["config", "show", "+nonsense=3"]) == 2
        said = capsys.readouterr()
        assert "nonsense: 3" in said.out
        assert "no key 'nonsense'" in said.err


class TestGenerate:
    def test_the_copy_works_as_config_dir(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = tmp_path / "mine"
        assert cli.main(["config", "generate", str(folder)]) == 0
        file = folder / "training" / "default.yaml"
        file.write_text(file.read_text().replace("seed: 1234", "seed: 77"))
        capsys.readouterr()
        assert cli.main(["config", "show", "--config-dir", str(folder)]) == 0
        assert "seed: 77" in capsys.readouterr().out

    def test_overwrites_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "train.yaml").write_text("mine")
        assert "is not empty" in fails(capsys, "config", "generate", str(tmp_path))
        assert (tmp_path / "train.yaml").read_text() == "mine"

    def test_a_full_disk_leaves_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied = []

        def copy(source: str, target: str) -> None:
            copied.append(target)
            Path(target).touch()
            if len(copied) > 3:
                raise OSError(28, "No space left on device", target)

        copytree = shutil.copytree

        def copy_all(source: Path, target: Path, *rest: Any, **options: Any) -> Any:
            return copytree(source, target, *rest, **options, **({} if rest else {"copy_function": copy}))

        monkeypatch.setattr(shutil, "copytree", copy_all)
        assert "No space left on device" in fails(capsys, "config", "generate", str(tmp_path / "mine"))
        assert not (tmp_path / "mine").exists()

    def test_a_file_in_the_way(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "x").write_text("")
        assert "is a file" in fails(capsys, "config", "generate", str(tmp_path / "x"))


class TestCacheFolder:
    def test_from_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from etesian.commands.common import cache_dir

        monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path))
        assert cache_dir() == tmp_path

    def test_of_the_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from etesian.commands.common import cache_dir

        monkeypatch.delenv("ETESIAN_CACHE", raising=False)
        assert cache_dir().name == "etesian"


def test_a_kernel_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "kernel_beside_the_config.py").write_text("from torch.nn import RMSNorm\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    override = "model.layer_kernels.LayerNorm._target_=kernel_beside_the_config.RMSNorm"
    assert cli.main(["kernels", "check", override]) == 0
    assert "kernel_beside_the_config.RMSNorm" in capsys.readouterr().out
    assert sys.path == before
    monkeypatch.delitem(sys.modules, "kernel_beside_the_config")


def test_a_kernel_of_no_folder_says_where_it_may_lie(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["kernels", "check", "model.layer_kernels.LayerNorm._target_=nowhere_at_all.Norm"]) == 2
    assert "put nowhere_at_all.py into the current folder" in capsys.readouterr().err


class TestSignals:
    """What a command that writes does when it is told to end."""

    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_a_dataset_that_is_being_made_leaves_nothing(self, sent: signal.Signals, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "etesian", "dataset", "make", "synthetic", "a.zarr"]
        options = ["--grid", "o8", "--prognostic", "8", "--forcing", "0", "--diagnostic", "0", "--dates", "500000"]
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        maker = subprocess.Popen(
            [*command, *options], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 60.0
            while not list(tmp_path.glob(".a-*.partial/a.zarr/data/2.0.0.0")):
                assert maker.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            maker.send_signal(sent)
            said = maker.communicate(timeout=60)[1].decode()
        finally:
            maker.kill()
        assert maker.returncode == 128 + sent
        assert {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[sent] in said
        assert "Traceback" not in said
        assert list(tmp_path.iterdir()) == []

    def test_the_handler_is_there_for_every_command_but_train(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = {}

        def run(args: argparse.Namespace) -> int:
            seen[args.command] = signal.getsignal(signal.SIGTERM)
            return 0

        for name in ("version", "train"):
            monkeypatch.setattr(importlib.import_module(f"etesian.commands.{name}"), "run", run)
            assert cli.main([name]) == 0
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert seen["train"] is signal.SIG_DFL
        assert callable(seen["version"])

    def test_a_handler_of_the_callers_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        version = importlib.import_module("etesian.commands.version")
        monkeypatch.setattr(version, "run", lambda _: int(signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN))
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            assert cli.main(["version"]) == 0
        finally:
            signal.signal(signal.SIGTERM, before)
