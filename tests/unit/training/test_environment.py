import json
import subprocess

import numpy as np
import torch

from etesian.training.environment import _nvidia_driver, environment, git_state


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_description_is_json_and_names_what_ran(tmp_path):
    tree = json.loads(json.dumps(environment(["anemoi-training", "train", "a=1"], tmp_path)))
    assert tree["command"] == ["anemoi-training", "train", "a=1"]
    assert tree["versions"]["numpy"] == np.__version__
    assert tree["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert tree["cpu"]["name"]
    assert tree["date"].endswith("+00:00")
    assert (tree["accelerator"] is None) == (not torch.accelerator.is_available())
    assert tree["git"] is None


def test_the_commit_and_whether_tracked_files_differ_from_it(tmp_path):
    git(tmp_path, "init", "-b", "main")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    (tmp_path / "untracked").write_text("1")
    state = git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert (state["branch"], state["dirty"]) == ("main", False)
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"] is True
    assert git_state(tmp_path / "nowhere") is None


def test_the_driver_of_an_nvidia_card(tmp_path):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a)  Sun Jul\n"
    (tmp_path / "version").write_text(text)
    assert _nvidia_driver(tmp_path / "version") == "580.65.06"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun\n")
    assert _nvidia_driver(tmp_path / "version") == "535.54.03"
    assert _nvidia_driver(tmp_path / "none") is None
