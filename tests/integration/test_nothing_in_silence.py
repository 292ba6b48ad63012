"""What is asked for and can't be had stops ``train``: status 2, the place, the mend, and nothing is left behind."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_site import run, site
from runs import environment, train

from etesian.kernels.slots import SLOTS

LIMIT = 10.0
"""Seconds within which a command of its own has to stop."""

LIGER_NORM = "liger_kernel.transformers.rms_norm.LigerRMSNorm"
INSTALL_LIGER = "pip install 'etesian[liger]'"
ALL_SLOTS = ", ".join(SLOTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this module share, so that the embedded dataset is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def here(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to train in."""
    monkeypatch.setenv("ETESIAN_CACHE", str(cache))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    """Train, and return what is said of each problem: its parts ``error``, ``where``, ``allowed``, ``mend``."""
    before = sorted(Path.cwd().rglob("*"))
    assert train(*arguments) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    return parts(capsys.readouterr().err)


def parts(said: str) -> list[dict[str, str]]:
    assert said.startswith("error: ")
    return [dict(re.findall(r"^ *(error|where|allowed|mend): +(.*)$", block, re.MULTILINE))
            for block in re.split(r"^(?=error: )", said, flags=re.MULTILINE) if block]  # fmt: skip


# Misspelt slots, at every level and however they are written


@pytest.mark.parametrize("misspelt", ["Layernorm", "layer_norm", "LayerNrom"])
@pytest.mark.parametrize("level", ["model", "model.encoder", "model.processor", "model.decoder"])
@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_misspelt_slot_of_the_command_line(
    level: str, misspelt: str, plus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = f"{level}.layer_kernels.{misspelt}"
    assert told(capsys, f"{plus}{key}._target_=torch.nn.RMSNorm") == [
        {
            "error": f"unknown layer kernel slot '{misspelt}'",
            "where": key,
            "allowed": ALL_SLOTS,
            "mend": "did you mean 'LayerNorm'?",
        }
    ]


@pytest.mark.parametrize("level", ["model", "model.encoder", "model.processor", "model.decoder"])
def test_a_misspelt_slot_of_a_yaml_file(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(f"{level}.layer_kernels".split(".")))
    depth = "  " * text.count("\n")
    Path("mine.yaml").write_text(
        f"defaults: [train, _self_]\n{text}{depth}layer_norm: {{_target_: torch.nn.LayerNorm}}\n"
    )
    (problem,) = told(capsys, "--config-name", "mine")
    assert problem["where"] == f"{level}.layer_kernels.layer_norm"
    assert problem["mend"] == "did you mean 'LayerNorm'?"


@pytest.mark.parametrize("level", ["model", "processor"])
def test_a_misspelt_slot_of_a_preset_of_the_user(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("model/layer_kernels")
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("layer_norm: {_target_: torch.nn.LayerNorm}\n")
    at = "" if level == "model" else f"@model.{level}.layer_kernels"
    (problem,) = told(capsys, f"{'+' if at else ''}model/layer_kernels{at}=mine")
    assert problem["where"] == f"model{'' if level == 'model' else f'.{level}'}.layer_kernels.layer_norm"
    assert problem["mend"] == "did you mean 'LayerNorm'?"


# Kernels that can't be had


def test_a_missing_kernel_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    (problem,) = told(capsys, "model/layer_kernels=liger")
    for part in ("slot LayerNorm", LIGER_NORM, "the library is missing (liger-kernel)", "ModuleNotFoundError"):
        assert part in problem["error"]
    assert problem["where"] == "model.layer_kernels.LayerNorm._target_"
    assert problem["mend"] == INSTALL_LIGER


@pytest.mark.slow
def test_a_missing_triton(tmp_path: Path) -> None:
    without = tmp_path / "without triton"
    without.mkdir()
    for part in site().glob("liger_kernel*"):
        (without / part.name).symlink_to(part)
    paths = ":".join([*sys.path, str(without)])
    for target, slot in ((LIGER_NORM, "QueryNorm"), ("etesian.kernels.liger.LigerSwiGLU", "MLP")):
        override = f"model.encoder.layer_kernels.{slot}._target_={target}"
        done = run("etesian", "train", override, folder=tmp_path, interpreter=False, check=False, PYTHONPATH=paths)
        assert done.returncode == 2
        (problem,) = parts(done.stderr)
        assert f"slot {slot}: {target} can't be imported" in problem["error"]
        assert "ModuleNotFoundError: No module named 'triton" in problem["error"]
        assert problem["mend"] in (INSTALL_LIGER, "pip install 'etesian[triton]'")


def test_a_path_that_is_wrong_inside_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, "model.layer_kernels.LayerNorm._target_=torch.nn.LayerNrom")
    assert "'torch' is installed, but the path is wrong inside it: 'torch.nn' has no 'LayerNrom'" in problem["error"]
    assert problem["mend"].startswith("did you mean 'LayerNorm'")


def test_an_argument_of_a_kernel_names_the_slot_and_shows_the_signature(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, "+model.layer_kernels.LayerNorm.epsilon=1e-6")
    assert problem == {
        "error": "slot LayerNorm: torch.nn.LayerNorm does not take 'epsilon'",
        "where": "model.layer_kernels.LayerNorm.epsilon",
        "allowed": "torch.nn.LayerNorm(normalized_shape, eps=1e-05, elementwise_affine=True, bias=True, device=None, "
        "dtype=None)",
        "mend": "did you mean 'eps'?",
    }  # fmt: skip


def test_an_argument_that_a_kernel_needs_shows_the_signature(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, "model.layer_kernels.Activation._target_=torch.nn.Threshold")
    assert "slot Activation: torch.nn.Threshold can't be built as the model builds it" in problem["error"]
    assert "missing a required argument: 'threshold'" in problem["error"]
    assert problem["allowed"].startswith("torch.nn.Threshold(threshold, value")


def test_what_a_preset_leaves_under_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    key = "model.layer_kernels.LayerNorm"
    (problem,) = told(capsys, "model/layer_kernels=liger", f"{key}._target_=torch.nn.RMSNorm")
    assert "in_place=False is left over from the kernel that was configured before" in problem["error"]
    assert problem["mend"] == f"add the override ~{key}.in_place"
    assert (
        train("--cfg", "job", "model/layer_kernels=liger", f"{key}._target_=torch.nn.RMSNorm", f"~{key}.in_place") == 0
    )


@pytest.mark.parametrize("level", ["model", "model.processor"])
def test_what_a_preset_leaves_under_another_target_of_a_yaml_file(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "" if level == "model" else f"@{level}.layer_kernels"
    nested = "{LayerNorm: {_target_: torch.nn.RMSNorm}}"
    for part in [*level.split("."), "layer_kernels"][:0:-1]:
        nested = f"{{{part}: {nested}}}"
    Path("mine.yaml").write_text(f"defaults: [train, {{{'' if at else 'override '}/model/layer_kernels{at}: liger}}, "
                                 f"_self_]\nmodel: {nested}\n")  # fmt: skip
    (problem,) = told(capsys, "--config-name", "mine")
    assert f"in_place=False is left over from {LIGER_NORM} of the preset" in problem["error"]
    assert problem["mend"] == f"add the override ~{level}.layer_kernels.LayerNorm.in_place"
    assert train("--config-name", "mine", problem["mend"].split()[-1], "--cfg", "job") == 0


def test_a_target_that_makes_no_module_is_not_called(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, "model.layer_kernels.Activation={_target_: os.system, command: touch called}")
    assert "os.system is a builtin_function_or_method; it was not called" in problem["error"]


@pytest.mark.parametrize(
    ("kernel", "precision", "reason"),
    [
        ("OtherShape", "32-true", "it returns the shape [6, 31], where [6, 32] is due"),
        ("NotANumber", "32-true", "it returns NaN or infinity for small numbers"),
        ("FailsBackward", "32-true", "its backward pass fails: NotImplementedError: only forward"),
        ("Float32Only", "bf16-mixed", "its forward pass fails: TypeError: takes float32 only, not torch.bfloat16"),
    ],
)
def test_a_kernel_that_does_not_run(
    kernel: str, precision: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = [f"model.processor.layer_kernels.LayerNorm._target_=faulty_kernels.{kernel}"]
    (problem,) = told(capsys, *norm, f"training.precision={precision}")
    does_not_run = f"faulty_kernels.{kernel} does not run on cpu with training.precision={precision}"
    assert problem["error"] == f"slot LayerNorm of processor: {does_not_run}: {reason}"
    assert problem["where"] == "model.processor.layer_kernels.LayerNorm"
    assert "model.processor.layer_kernels.LayerNorm._target_=torch.nn.LayerNorm" in problem["mend"]


# What is to be compiled


@pytest.mark.parametrize(
    ("override", "said", "mend"),
    [
        ("model.compile=[{module: etesian.model.block.GraphTransformerBlok}]", "GraphTransformerBlok", "Block'"),
        ("model.compile=[{module: no_such_library.Block}]", "no_such_library", ""),
        ("model.compile=[{kernel: LayerNrom}]", "LayerNrom", "did you mean 'LayerNorm'?"),
    ],
)
def test_a_compile_entry_of_what_is_not_there(
    override: str, said: str, mend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (problem,) = told(capsys, override)
    assert said in problem["error"]
    assert problem["where"].startswith("model.compile")
    assert mend in problem.get("mend", "")


# Keys and periods


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize("section", ["dataloader", "model", "model.processor", "training", "diagnostics.plot"])
def test_a_key_that_nothing_reads(section: str, plus: str, capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, f"{plus}{section}.nonsense=1")
    assert problem["error"] == f"{section}.nonsense: section {section!r} has no key 'nonsense'"
    assert problem["where"] == f"{section}.nonsense"
    assert len(problem["allowed"].split(", ")) > 1
    assert problem["mend"] == "leave it out"


def test_a_training_period_that_begins_before_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = told(capsys, "dataloader.training.start=1946-01")
    assert problem["error"].startswith("start 1946-01 lies before the data: the data covers 1948-01")
    assert problem["where"] == "dataloader.training.start"
    assert problem["mend"] == "dataloader.training.start=1948-01"


def test_a_period_outside_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = told(capsys, "dataloader.training.start=2040-01", "dataloader.training.end=2041-01")
    assert first["error"].startswith("start 2040-01 lies after the data")
    assert last["error"].startswith("end 2041-01 lies after the data")
    assert last["where"] == "dataloader.training.end"
    assert last["allowed"] == "1948-01 to 2026-02"
    assert last["mend"] == "dataloader.training.end=2026-02"


# Within seconds, in a process of its own


COMMANDS = {
    "a misspelt slot": ["+model.processor.layer_kernels.layer_norm._target_=torch.nn.LayerNorm"],
    "a missing library": ["model/layer_kernels=liger_swiglu"],
    "a wrong path": ["model.layer_kernels.LayerNorm._target_=torch.nn.LayerNrom"],
    "a wrong argument": ["+model.layer_kernels.LayerNorm.epsilon=1e-6"],
    "no module": ["model.layer_kernels.Activation._target_=os.system"],
    "a kernel that does not run": ["model.encoder.layer_kernels.LayerNorm._target_=faulty_kernels.FailsForward"],
    "a key that nothing reads": ["+dataloader.nonsense=1"],
    "a period outside the data": ["dataloader.training.start=1946-01"],
}


def processor_seconds() -> float:
    """Return the seconds that processes started here, and ended, have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_it_takes_seconds(arguments: list[str], cache: Path, here: Path) -> None:
    """Seconds of the processor, of one thread: what the clock says where nothing else runs."""
    before = processor_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "etesian", "train", *arguments],
        cwd=here, env=environment(cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = processor_seconds() - before
    assert done.returncode == 2, done.stdout + done.stderr
    assert parts(done.stderr)
    assert seconds <= LIMIT
    assert not list(here.iterdir())


@pytest.mark.slow
def test_a_mistake_is_told_before_lightning_is_imported(cache: Path, here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "etesian", "train", "dataloader.training.start=1700-01-01"],
        cwd=here, env=environment(cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch" in imported
    assert "pytorch_lightning" not in imported
