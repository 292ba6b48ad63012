"""Whether a run may go on in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_checkpoint
import torch

from etesian.errors import UserError
from etesian.training.checkpoints import position_in_data
from etesian.training.fit import load_checkpoint
from etesian.training.run_folder import EXPERIMENT_SECTIONS, RunFolder

CONFIG = {section: {"key": 1} for section in (*EXPERIMENT_SECTIONS, "training")}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path, "first")
    run.create()
    return run


def test_the_same_config_goes_on(run: RunFolder) -> None:
    run.write_config(CONFIG)
    run.check_same_experiment(CONFIG)
    with pytest.raises(UserError, match=r"model.key=1, this config has 2"):
        run.check_same_experiment(CONFIG | {"model": {"key": 2}})


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is missing"), ("a: [b", "can't be read"), ("[1]", "holds no config"), ("", "holds no config"),
     ("model: 3", "holds no config"), (b"a: \xff", "can't be read")],
)  # fmt: skip
def test_a_config_that_tells_nothing(run: RunFolder, content: str | bytes | None, reason: str) -> None:
    file = run.path / "config.yaml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=reason) as caught:
        run.check_same_experiment(CONFIG)
    assert caught.value.problems[0].where == str(file)


def test_other_checkpoints_without_the_last(run: RunFolder) -> None:
    assert run.last_checkpoint is None
    (run.checkpoints / "best.ckpt").touch()
    with pytest.raises(UserError, match=r"no file last\.ckpt") as caught:
        run.last_checkpoint  # noqa: B018
    assert caught.value.problems[0].allowed == "there: best.ckpt"
    (run.checkpoints / "last.ckpt").touch()
    assert run.last_checkpoint == run.checkpoints / "last.ckpt"


@pytest.mark.parametrize(
    "key",
    ["etesian", "state_dict", "loops", "optimizer_states", "lr_schedulers", "global_step", "etesian.format",
     "etesian.random"],
)  # fmt: skip
def test_a_checkpoint_that_lacks_something(tmp_path: Path, key: str) -> None:
    file, (broken, _) = tmp_path / "c.ckpt", small_checkpoint.make()
    torch.save(broken, file)
    assert load_checkpoint(file)["global_step"] == 30
    section, _, name = key.rpartition(".")
    (broken["etesian"] if section else broken).pop(name)
    torch.save(broken, file)
    with pytest.raises(UserError, match="is not a checkpoint of a run"):
        load_checkpoint(file)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04half"])
def test_a_file_that_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.ckpt"
    file.write_bytes(content)
    with pytest.raises(UserError, match="can't be read as a checkpoint"):
        load_checkpoint(file)


@pytest.mark.parametrize("loops", [{}, {"fit_loop": {}}, {"fit_loop": {"epoch_progress": 3}}])
def test_a_checkpoint_that_does_not_tell_where_the_data_go_on(loops: dict) -> None:
    with pytest.raises(UserError, match="does not tell where its data go on"):
        position_in_data({"loops": loops})
