"""Models of both kinds beside ``AnemoiModelEncProcDec`` of anemoi-models 0.19: outputs and gradients, with its weights.

Run by ``test_peers.py``, in a process that has the peers.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import peer_checkpoints as peer
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from etesian.checkpoint.peer.convert import convert
from etesian.checkpoint.peer.source import read_peer
from etesian.checkpoint.peer.weights import convert_weights
from etesian.commands.common import register_kinds
from etesian.compose import compose

KINDS, MLPS = ("graphtransformer", "transformer"), ("mlp", "glu", "swiglu", "geglu", "reglu")
MATRIX = [
    *({"kind": kind, "qk_norm": qk_norm, "mlp": mlp}
      for kind, qk_norm, mlp in itertools.product(KINDS, (False, True), MLPS)),
    *({"kind": kind, "learnt": 0} for kind in KINDS),
    *({"kind": kind, "latent_skip": False} for kind in KINDS),
    *({"kind": "transformer", "window": window} for window in (None, 1, 100)),
]  # fmt: skip
POINTS, BATCH, MEMBERS = 60, 2, 2


@pytest.fixture(scope="module")
def graph() -> HeteroData:
    rng = np.random.default_rng(0)
    return peer.make_graph(np.rad2deg(np.arcsin(rng.uniform(-1, 1, POINTS))), rng.uniform(0, 360, POINTS))


def make_config(
    kind: str, qk_norm: bool = False, mlp: str = "mlp", learnt: int | None = None, latent_skip: bool = True, **own: Any
) -> dict[str, Any]:
    config = peer.make_config(kind=kind, qk_norm=qk_norm, mlp=mlp)
    model = config["model"]
    model["model"]["latent_skip"] = latent_skip
    if "window" in own:
        model["processor"]["window_size"] = own["window"]
    if learnt is not None:
        model["node_trainable_parameters"] = {"data": learnt, "hidden": learnt}
        mappers = [entry["0"]["mapper"] for entry in (model["encoders"], model["decoders"])]
        for section in (*mappers, *([model["processor"]] if kind == "graphtransformer" else [])):
            section["trainable_size"] = learnt
    return config


def results(model: nn.Module, x: Tensor, *, members_apart: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the output, and the gradients of the input and of each parameter, under each of its names.

    The peer's model takes one member of an ensemble at a time.
    """
    leaf = x.clone().requires_grad_()
    if members_apart:
        members = [model({"data": leaf[:, :, [n]]})["data"][:, 0] for n in range(MEMBERS)]
        out = torch.cat(members, dim=1)
    else:
        out = model(leaf)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x.dtype)
    named = dict(model.named_parameters(remove_duplicate=False))
    gradients = torch.autograd.grad(out, [leaf, *named.values()], cotangent, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients[1:], named.values(), strict=True)]
    return out.detach(), gradients[0], dict(zip(named, filled, strict=True))


def assert_near(found: Tensor, expected: Tensor, tolerance: float, scale: float, name: str) -> None:
    assert found.shape == expected.shape, name
    assert float((found - expected).abs().max()) <= tolerance * max(scale, float(expected.abs().max())), name


@pytest.mark.parametrize(
    ("options", "dtype", "tolerance"),
    [
        *((options, torch.float64, 1e-9) for options in MATRIX),
        *((options, torch.float32, 1e-5) for options in MATRIX[::4]),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_outputs_and_gradients(
    options: dict[str, Any], dtype: torch.dtype, tolerance: float, graph: HeteroData, tmp_path: Path
) -> None:
    register_kinds()
    model, held = peer.make_model(make_config(**options), graph)
    peer.write(tmp_path / "theirs.ckpt", model, held)
    source = read_peer(tmp_path / "theirs.ckpt")
    base = compose("own_data", None, ["system.input.dataset=x.zarr"]).tree
    own = convert(source, base, tmp_path / "g.pt", None, "imported").forecaster.model.to(dtype)
    theirs = model.model.to(dtype)
    for module in theirs.modules():  # not among the weights, and not changed by `to`
        for name, value in module.named_buffers(recurse=False):
            assert not value.is_floating_point() or value.dtype == dtype, name
    x = torch.randn(BATCH, 2, MEMBERS, POINTS, 3, dtype=dtype)
    found, on_input, gradients = results(own, x, members_apart=False)
    expected, on_their_input, their_gradients = results(theirs, x, members_apart=True)
    assert_near(found, expected, tolerance, 0.0, "output")
    assert_near(on_input, on_their_input, tolerance, 0.0, "input")
    layouts = {name: value for name, value in source.state.items() if name.endswith("trainable_layout_version")}
    layouts = {name.removeprefix("model."): value for name, value in layouts.items()}
    names = {"dataset": "data", "hidden": "hidden", "encoder": "0", "decoder": "0"}
    wanted = convert_weights(own, options["kind"], their_gradients | layouts, source.graph, names, "gradients")
    assert wanted.keys() == gradients.keys()
    # A softmax takes no notice of the bias of keys: its gradient, and much of that of queries, is what rounding leaves.
    least = 1e-2 * max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in gradients.items():
        assert_near(gradient, wanted[name], tolerance, least, name)
