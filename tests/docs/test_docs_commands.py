"""Every command, YAML block and printed error of README and docs/ is right."""

from __future__ import annotations

import argparse
import importlib
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from doc_pages import Block, blocks, commands, file_name, fragments, named_files, shown_errors

from etesian import cli
from etesian.commands import common
from etesian.commands.config import generate
from etesian.compose import compose
from etesian.errors import UserError
from etesian.kernels.probe import probe_kernels
from etesian.kernels.resolve import resolve_kernels
from etesian.model.miniature import build_miniature, miniature_input
from etesian.runtime.checkpointing import apply_activation_checkpointing
from etesian.schema import registry
from etesian.training import losses

RUN = {"version", "kernels list", "config show", "config generate", "config reference"}
"""Commands that are cheap enough to be run."""


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Parse a command line as the program does, without running the command."""
    seen: list[argparse.Namespace] = []
    for _, path, _ in cli.COMMANDS:
        monkeypatch.setattr(importlib.import_module(path), "run", lambda args: seen.append(args) or 0)
    cli._run(arguments)
    monkeypatch.undo()
    return seen[0]


def check_config(args: argparse.Namespace) -> None:
    """Compose and check the config of each job, and resolve its kernels."""
    for overrides in common.job_overrides(args):
        config, composed = common.load_config(args, overrides)
        preset = composed.choices.get("model/layer_kernels")
        try:
            resolve_kernels(config.model, preset=preset, overrides=composed.overrides)
        except UserError as error:
            if not all("the library is missing" in problem.what for problem in error.problems):
                raise


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; kinds of models that a page registers are forgotten again."""
    monkeypatch.chdir(tmp_path)
    common.register_kinds()
    for group in registry.GROUPS:
        monkeypatch.setitem(registry._KINDS, group, registry.kinds(group))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_kinds"]:
        del sys.modules[name]


def write_files(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that a page shows, and let its modules be imported."""
    for name, text in named_files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(("place", "arguments"), commands(), ids=[place for place, _ in commands()])
def test_a_documented_command_is_right(
    place: str, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["anemoi-training", *arguments])
    write_files(place.partition(":")[0], folder, monkeypatch)
    with monkeypatch.context() as patches:
        args = parsed(arguments, patches)
    monkeypatch.chdir(folder)
    if (named := getattr(args, "config_dir", None)) is not None:
        generate(folder / named)
    name = " ".join([args.command, *([args.action] if hasattr(args, "action") else [])])
    if name in RUN:
        assert cli.main(arguments) == 0
    is_theirs = name == "config convert"  # its config is of anemoi-training
    is_file = name == "graph describe" and any(word.endswith(".pt") and "=" not in word for word in args.overrides)
    if hasattr(args, "config_name") and not (is_file or is_theirs) and not getattr(args, "cfg", None):
        args.cfg = None
        check_config(args)
    elif getattr(args, "cfg", None):
        assert cli.main(arguments) == 0


@pytest.mark.parametrize("block", fragments(), ids=lambda block: block.name)
def test_a_part_of_a_config_is_right(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is put over the default config."""
    write_files(block.page, folder, monkeypatch)
    (folder / "part.yaml").write_text(f"defaults: [train, _self_]\n{block.text}")
    args = argparse.Namespace(config_name="part", config_dir=None, overrides=[], cfg=None)
    check_config(args)


FILES = [block for block in blocks("yaml") if file_name(block) is not None]


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.name)
def test_a_shown_file_is_right(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(block.page, folder, monkeypatch)
    name = str(file_name(block))
    content = yaml.safe_load(block.text)
    if "checkpoint" in content:  # a forecast of anemoi-inference, which tests/integration/test_inference_run.py runs
        return
    if block.text.startswith("# @package") and "kind" in content:  # a kind of model, which the page's commands choose
        return
    if "defaults" not in content:  # a recipe of anemoi-datasets
        assert {"dates", "input"} <= set(content)
        return
    file, (group, _, option) = folder / name, name.removesuffix(".yaml").rpartition("/")
    if block.text.startswith("# @package"):
        chosen = [f"{group}={option}"]
        check_config(argparse.Namespace(config_name="train", config_dir=str(folder), overrides=chosen, cfg=None))
        return
    check_config(argparse.Namespace(config_name=file.stem, config_dir=str(file.parent), overrides=[], cfg=None))


@pytest.mark.parametrize(("place", "arguments", "output"), shown_errors(), ids=[shown[0] for shown in shown_errors()])
def test_a_shown_error_is_what_is_printed(
    place: str,
    arguments: list[str],
    output: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_files(place.partition(":")[0], folder, monkeypatch)
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err == output, f"{place}: {shlex.join(arguments)}"


def test_the_loss_of_the_guide_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._KINDS, "loss", registry.kinds("loss"))
    (block,) = [block for block in blocks("python") if block.page == "docs/contributing.md"]
    names = dict(vars(losses))
    exec(block.text, names)
    assert registry.kinds("loss")["log_cosh"] is names["LogCoshSettings"]
    loss = names["LogCoshLoss"](torch.ones(3, 1))(torch.zeros(2, 1, 3, 1), torch.ones(2, 1, 3, 1))
    torch.testing.assert_close(loss, torch.full((2,), math.log(math.cosh(1.0))))


def test_the_kernel_of_the_guide_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("docs/adding-a-kernel.md", folder, monkeypatch)
    tests = importlib.import_module("test_my_kernels")
    for dtype in (torch.float32, torch.bfloat16):
        tests.test_it_is_the_norm_of_torch(dtype)
    assert cli.main(["kernels", "check", "--config-name", "wide"]) == 0


def test_the_kind_of_model_of_the_guide_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files("docs/adding-a-model-kind.md", folder, monkeypatch)
    overrides = ["model/processor=smoothing", "model/encoder=gnn", "model.processor.gradient_checkpointing=full"]
    settings = common.check_tree(compose("train", None, overrides)).model
    assert (settings.kind, settings.encoder.kind) == ("my_kinds.smoothing", "gnn")
    kernels = resolve_kernels(settings, preset=None, overrides=[])
    probe_kernels(kernels, settings, torch.device("cpu"), "32-true")
    model = build_miniature(settings, kernels)
    assert apply_activation_checkpointing(model, settings) == 1
    model(miniature_input(settings, torch.float32)).square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    with pytest.raises(UserError, match=r"model.processor.pull=2 is too large"):
        common.check_tree(compose("train", None, [*overrides, "model.processor.pull=2"]))


def test_there_is_something_to_test() -> None:
    assert len(commands()) > 30
    assert len(fragments()) > 8
    assert len(shown_errors()) > 2
