"""Checkpoints of anemoi-training become checkpoints here that compute the same, or are refused by name.

Run by ``test_peers.py``, in a process that has the peers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peer_checkpoints as peer
import pytest
import torch
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.convert import convert
from etesian.checkpoint.peer.source import read_peer
from etesian.commands.common import register_kinds
from etesian.compose import compose
from etesian.errors import UserError

KINDS = [
    ({}, "training"),
    ({"qk_norm": True, "mlp": "swiglu"}, "inference"),
    ({"mlp": "geglu"}, "training"),
    ({"kind": "transformer", "qk_norm": True}, "inference"),
]


def grid(number: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.rad2deg(np.arcsin(rng.uniform(-1, 1, number))), rng.uniform(0, 360, number)


@pytest.fixture(scope="module")
def graph() -> HeteroData:
    return peer.make_graph(*grid())


@pytest.fixture(scope="module")
def made(graph: HeteroData) -> tuple[Any, dict[str, Any]]:
    """Return a model of the peer, and what its checkpoint holds beside the weights."""
    return peer.make_model(peer.make_config(), graph)


def imported(path: Path) -> Any:
    register_kinds()
    base = compose("own_data", None, ["system.input.dataset=x.zarr"]).tree
    return convert(read_peer(path), base, path.with_suffix(".graph.pt"), None, "imported")


@pytest.mark.parametrize(("options", "contains"), KINDS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=str)
def test_it_computes_the_same(
    options: dict[str, Any], contains: str, dtype: torch.dtype, tolerance: float, graph: HeteroData, tmp_path: Path
) -> None:
    assert bool((graph["hidden", "to", "hidden"].edge_index[1].diff() < 0).any())  # learnt features change places
    model, held = peer.make_model(peer.make_config(**options), graph)
    peer.write(tmp_path / "theirs.ckpt", model, held, contains)
    own, theirs = imported(tmp_path / "theirs.ckpt").forecaster.model.to(dtype), model.model.to(dtype)
    for module in theirs.modules():  # not among the weights, and not changed by `to`
        for name, value in module.named_buffers(recurse=False):
            assert not value.is_floating_point() or value.dtype == dtype, name
    x = torch.randn(2, 2, 1, 60, 3, dtype=dtype)
    with torch.no_grad():
        expected, found = theirs({"data": x.clone()})["data"][:, 0], own(x)
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())
    assert float(expected[..., 2].min()) == 0.0  # the bound is in use


def test_normalised_forecasts_are_the_peers(made: tuple[Any, dict[str, Any]], tmp_path: Path) -> None:
    model, held = made
    peer.write(tmp_path / "theirs.ckpt", model, held)
    x = 1.5 + torch.randn(1, 2, 1, 60, 4)
    own = imported(tmp_path / "theirs.ckpt").forecaster(x)
    with torch.no_grad():
        inputs = model.pre_processors["data"](x[..., :3].clone())
        expected = model.post_processors["data"](model.model({"data": inputs})["data"])
    torch.testing.assert_close(own, expected[:, 0], rtol=1e-5, atol=1e-5)


def change(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *path, last = key.split("/")
    section = config
    for name in path:
        section = section[name]
    section[last] = value
    return config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model/processor/_target_", f"{peer.LAYERS}.processor.GNNProcessor", "GNNProcessor' .*no counterpart"),
        ("model/processor/edge_pre_mlp", True, "model.processor.edge_pre_mlp=True"),
        ("model/residual/datasets/data/_target_", f"{peer.LAYERS}.residual.TruncatedConnection", "TruncatedConn"),
        ("model/decoders/0/target_node_features", ["coordinates"], "target_node_features=.*coordinates"),
        ("model/bounding/datasets/data",
         [{"_target_": f"{peer.LAYERS}.bounding.LeakyReluBounding", "variables": ["tp"]}],
         r"bounding\[0\]._target_='.*LeakyReluBounding"),
        ("data/datasets/data/processors/imputer", {"_target_": "anemoi.models.preprocessing.imputer.InputImputer"},
         "processors.imputer._target_='.*InputImputer"),
        ("data/datasets/data/processors/normalizer/config/remap", {"q": "t"}, "remap=.* of the checkpoint"),
        ("model/processor/layer_kernels/LayerNorm/_target_", "torch.nn.RMSNorm", "LayerNorm._target_=.*RMSNorm"),
        ("model/model/_target_", "anemoi.models.models.AnemoiEnsModelEncProcDec", "AnemoiEnsModelEncProcDec"),
        ("model/processor/num_layers", 1, r"processor\.proc\.1\.\S+ has no counterpart"),
        ("model/processor/num_layers", 3, r"processor\.blocks\.2\.\S+ would be processor\.proc\.2\.\S+, which is not"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(
    key: str, value: Any, message: str, made: tuple[Any, dict[str, Any]], tmp_path: Path
) -> None:
    config = peer.OmegaConf.create(change(peer.make_config(), key, value))
    peer.write(tmp_path / "theirs.ckpt", made[0], made[1] | {"config": config})
    with pytest.raises(UserError, match=message):
        imported(tmp_path / "theirs.ckpt")
