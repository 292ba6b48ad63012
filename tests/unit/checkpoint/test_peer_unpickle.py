"""Pickles that others wrote are read without running anything of them."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import make_graph

from etesian.checkpoint.peer.source import read_peer
from etesian.checkpoint.peer.unpickle import Stub, module_state, read_pickle
from etesian.errors import UserError


class Harmful:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def test_what_a_pickle_calls_is_not_called(tmp_path: Path) -> None:
    folder, file = tmp_path / "made", tmp_path / "x.ckpt"
    torch.save({"bad": Harmful(folder)}, file)
    loaded = read_pickle(file)["bad"]
    assert isinstance(loaded, Stub)
    assert loaded.path.endswith(".mkdir")
    assert loaded.arguments == (str(folder),)
    assert not folder.exists()
    torch.load(file, weights_only=False)
    assert folder.exists()  # so it would have been


def test_data_come_back_and_classes_do_not(tmp_path: Path) -> None:
    graph = make_graph()
    torch.save(
        {"array": np.arange(3.0), "order": OrderedDict(a=1), "graph": graph, "set": {1}, "path": Path("a")},
        tmp_path / "x.ckpt",
    )
    loaded = read_pickle(tmp_path / "x.ckpt")
    np.testing.assert_array_equal(loaded["array"], np.arange(3.0))
    assert (loaded["order"], loaded["set"]) == (OrderedDict(a=1), {1})
    assert torch.equal(loaded["graph"]["data"].x, graph["data"].x)
    assert isinstance(loaded["path"], Stub)


def test_the_state_of_a_module_that_was_pickled_whole(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    module.register_buffer("scratch", torch.ones(1), persistent=False)
    torch.save(module, tmp_path / "x.ckpt")
    state = module_state(read_pickle(tmp_path / "x.ckpt"))
    assert state.keys() == module.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"etesian": {}}, "checkpoint of this package, which needs no import"),
        (torch.nn.Linear(2, 2), "a torch.nn.modules.linear.Linear"),
        ({"hyper_parameters": {}, "state_dict": {}}, "no metadata of Anemoi"),
    ],
)
def test_a_file_of_something_else(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match=message):
        read_peer(tmp_path / "x.ckpt")


def test_a_file_that_is_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_text("hello")
    with pytest.raises(UserError, match="can't be read as a checkpoint"):
        read_peer(tmp_path / "x.ckpt")
